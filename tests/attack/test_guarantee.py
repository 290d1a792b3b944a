"""What noise is worth: against the exact law of the Gaussian mechanism, and figures of another accountant."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm as gaussian

from edge_client.errors import EnvironmentFault
from sim.config.study import Study, load_study
from sim.guarantee import (
    Released,
    delta_of_gaussian,
    epsilon_if_always_drawn,
    epsilon_if_drawn_in_secret,
    epsilon_of_upload,
    mills_ratio,
    mu_of_epsilon,
    remarks,
)


def study(**chosen: object) -> Study:
    return load_study("paper/academic", {"rounds": 10, **{f"training.{key}": value for key, value in chosen.items()}})


@given(st.floats(0.0, 30.0))
def test_mills_ratio_is_that_of_scipy(x: float) -> None:
    assert mills_ratio(x) == pytest.approx(math.exp(gaussian.logsf(x) - gaussian.logpdf(x)), rel=1e-9)


@given(st.floats(0.01, 50.0), st.floats(0.01, 10.0))
def test_delta_is_that_of_the_two_gaussians(epsilon: float, mu: float) -> None:
    """P - e^epsilon Q at the set where it is largest: N(mu, 1) beyond epsilon/mu + mu/2, against N(0, 1)."""
    cut = epsilon / mu + mu / 2
    expected = gaussian.sf(cut - mu) - math.exp(epsilon + gaussian.logsf(cut))
    assert delta_of_gaussian(epsilon, mu) == pytest.approx(expected, rel=1e-6, abs=1e-13)


@given(st.floats(0.1, 1000.0), st.integers(1, 500), st.integers(1, 200))
def test_epsilon_is_the_least_that_suffices(noise: float, codes: int, rounds: int) -> None:
    epsilon = epsilon_of_upload(Released(1000, codes, rounds, noise), 1e-5)
    mu = 2 * math.sqrt(codes * rounds) / noise
    assert delta_of_gaussian(epsilon, mu) <= 1e-5 * (1 + 1e-6)
    if epsilon > 1e-3:
        assert delta_of_gaussian(epsilon * (1 - 1e-6), mu) > 1e-5 * (1 - 1e-4)


def test_a_known_pair() -> None:
    """Balle and Wang's calibration: one release is (1, 1e-5)-DP from sigma = 3.730632 times the sensitivity on."""
    assert 1 / mu_of_epsilon(1.0, 1e-5) == pytest.approx(3.730632, abs=1e-6)
    assert epsilon_of_upload(Released(1, 1, 1, 2 * 3.730632), 1e-5) == pytest.approx(1.0, abs=1e-5)


def test_figures_of_dp_accounting() -> None:
    """1,000 records of which 100 are drawn in each of 100 rounds, noise 2 x (8.4, 3.2, 1.5) times the clip."""
    pytest.importorskip("dp_accounting")
    for multiplier, epsilon in ((8.4, 1.0), (3.2, 3.0), (1.5, 8.0)):
        released = Released(1000, 100, 100, 2 * multiplier)
        assert epsilon_if_drawn_in_secret(released, 1e-5) == pytest.approx(epsilon, rel=0.05)


def test_our_law_of_all_rounds_is_that_of_dp_accounting() -> None:
    """Ten rounds of 39 codes, of which a record may move all, and of which it moves its own alone."""
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    released = Released(79, 39, 10, 23.8)
    for moved, ours in ((39, epsilon_of_upload(released, 1e-5)), (1, epsilon_if_always_drawn(released, 1e-5))):
        accountant = PLDAccountant()
        accountant.compose(accounting.GaussianDpEvent(released.noise / (2 * math.sqrt(moved))), released.rounds)
        assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


def test_the_better_bound_of_the_fixed_encoder_is_told() -> None:
    """Of half the records, sampling tells less than that a record is drawn each time; of a fiftieth, more."""
    pytest.importorskip("dp_accounting")
    for records, rho, better in ((282, 0.5, epsilon_if_always_drawn), (5000, 0.02, epsilon_if_drawn_in_secret)):
        released = Released(records, round(rho * records), 10, 45.1)
        one, other = epsilon_if_always_drawn(released, 1e-5), epsilon_if_drawn_in_secret(released, 1e-5)
        assert better(released, 1e-5) == min(one, other) < max(one, other)
        told = remarks(study(code_clip=3.0, code_noise=45.1, upload_fraction=rho), records)[2]
        assert told.endswith(f"epsilon {min(one, other):.4g}")


def test_without_the_package_the_figure_is_missed_and_the_rest_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(EnvironmentFault, match=r"pip install '\.\[privacy\]'"):
        epsilon_if_drawn_in_secret(Released(1000, 100, 100, 3.0), 1e-5)
    told = remarks(study(code_clip=3.0, code_noise=0.5), 141)
    assert told[0] == "codes are clipped to length 3, noise of standard deviation 1.5 on each of their numbers"
    assert "70 codes a round, 10 rounds: epsilon" in told[1] and "in every round; for fewer" in told[2]
    assert "'.[privacy]'" in told[2]


def test_the_noise_named_for_a_target_reaches_it() -> None:
    told = remarks(study(code_clip=3.0, code_noise=0.5), 141)[1]
    needed = float(told.rpartition("training.code_noise=")[2])
    assert epsilon_of_upload(Released(141, 70, 10, needed), 1e-5) == pytest.approx(8.0, rel=0.01)


def test_nothing_is_told_of_codes_that_are_not_defended_and_a_rotation_claims_nothing() -> None:
    assert remarks(study(), 141) == []
    told = remarks(study(code_rotation=True), 141)
    assert len(told) == 2 and "no (epsilon, delta)" in told[1]
