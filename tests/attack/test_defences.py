"""Upload stages: what they keep, what they hide, and the noise a guarantee takes."""

import math
from pathlib import Path

import numpy as np
import pytest
from attack.attack_tools import finished_study
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm as gaussian
from scipy.stats import ortho_group

from edge_client.errors import ConfigError
from edge_client.methods.defences import clip, clip_and_noise, noise_for_upload, rotate, rotate_back, rotation
from sim.attack.linkage import link
from sim.attack.victim import load_victim, upload

SECRET = b"sixteen bytes or more"
CODES = np.array([[3, 4], [0.3, 0.4], [0, 0]], np.float32)


def test_clipping_by_hand() -> None:
    """Norms 5, 0.5 and 0 against 1: the first is scaled by 1/5, the others stay."""
    np.testing.assert_allclose(clip(CODES, 1.0), [[0.6, 0.8], [0.3, 0.4], [0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(clip_and_noise(CODES, 1.0, 0.0, np.random.default_rng(0)), clip(CODES, 1.0))


def test_the_noise_has_the_spread_it_is_asked_for() -> None:
    noisy = clip_and_noise(np.zeros((20_000, 4), np.float32), 1.0, 2.5, np.random.default_rng(0))
    assert noisy.std() == pytest.approx(2.5, rel=0.02) and abs(noisy.mean()) < 0.03


@given(st.integers(1, 12), st.integers(0, 1000))
def test_a_rotation_keeps_distances_and_comes_back(width: int, round: int) -> None:
    codes = np.random.default_rng(round).normal(size=(7, width)).astype(np.float32)
    Q = rotation(SECRET, round, width)
    np.testing.assert_allclose(Q @ Q.T, np.eye(width), atol=1e-12)
    np.testing.assert_allclose(rotate_back(rotate(codes, Q), Q), codes, atol=1e-5)


def test_rotations_depend_on_secret_and_round_and_are_uniform() -> None:
    assert not np.allclose(rotation(SECRET, 1, 5), rotation(SECRET, 2, 5))
    assert not np.allclose(rotation(SECRET, 1, 5), rotation(b"another secret of ours", 1, 5))
    np.testing.assert_array_equal(rotation(SECRET, 1, 5), rotation(SECRET, 1, 5))
    ours = np.array([np.trace(rotation(SECRET, round, 3)) for round in range(4000)])
    theirs = np.array([np.trace(Q) for Q in ortho_group.rvs(3, size=4000, random_state=0)])
    assert abs(ours.mean() - theirs.mean()) < 0.08 and abs(ours.std() - theirs.std()) < 0.05


def test_a_rotation_of_each_round_breaks_linkage(tmp_path: Path) -> None:
    victim = load_victim(finished_study(tmp_path / "study"), 1)
    earlier, later = (upload(victim, victim.state, round) for round in (3, 4))
    plain = link(earlier.codes, earlier.rows, later.codes, later.rows)
    turned = [rotate(sent.codes, rotation(SECRET, round, 3)) for round, sent in ((3, earlier), (4, later))]
    hidden = link(turned[0], earlier.rows, turned[1], later.rows)
    assert plain.rate > 0.8 and hidden.rate < 0.5 * plain.rate


@given(st.floats(0.1, 20), st.floats(1e-9, 1e-2), st.integers(1, 500), st.integers(1, 200))
def test_the_noise_suffices_by_the_exact_law_of_the_gaussian(eps: float, delta: float, codes: int, rounds: int) -> None:
    """R Gaussian releases are one with mu = sensitivity sqrt(R) / sigma, whose exact delta(eps) is known (Dong et al.
    2022, Corollary 2.13): Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    sigma = noise_for_upload(eps, delta, norm=1.5, codes=codes, rounds=rounds)
    mu = 2 * 1.5 * math.sqrt(codes * rounds) / sigma
    exact = gaussian.cdf(mu / 2 - eps / mu) - math.exp(eps + gaussian.logcdf(-mu / 2 - eps / mu))
    assert exact <= delta


def test_the_guarantee_is_dear() -> None:
    """For one code and one round at epsilon 3, delta 1e-5: root rho = sqrt(ln 1e5 + 3) - sqrt(ln 1e5) = 0.4166, so
    sigma = 2 / (sqrt 2 * 0.4166) = 3.39 clips; 141 codes over 100 rounds take sqrt(14,100) = 118.7 times that."""
    one = noise_for_upload(3, 1e-5, norm=1, codes=1, rounds=1)
    assert one == pytest.approx(3.39, abs=0.01)
    assert noise_for_upload(3, 1e-5, norm=1, codes=141, rounds=100) == pytest.approx(118.743 * one, rel=1e-4)


def test_what_protects_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="can be guessed"):
        rotation(b"short", 1, 4)
    for call in (lambda: clip(CODES, 0), lambda: clip_and_noise(CODES, 1, -1, np.random.default_rng(0)),
                 lambda: noise_for_upload(0, 1e-5, norm=1, codes=1, rounds=1)):  # fmt: skip
        with pytest.raises(ConfigError):
            call()
