"""Upload stages: what they keep, what they hide, and in which order they stand."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from attack.attack_tools import FEATURES, SMALL, finished_study, records
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.context import LocalContext
from edge_client.methods.defences import ClipAndNoise, Rotate, clip, defences, in_words, rotation
from edge_client.methods.defended import Defended, defended
from edge_client.methods.gca import Gca, select_upload
from edge_client.methods.registry import method
from edge_client.model.choice import trainer_for
from edge_client.private_seeds import Secrets, emulated, private_stream, read_secret
from sim.attack.linkage import link
from sim.attack.victim import load_victim, upload

SECRET = b"sixteen bytes or more"
CODES = np.array([[3, 4], [0.3, 0.4], [0, 0]], np.float32)
HERE = Secrets(b"the device's own secret", SECRET)


def with_defences(**chosen: object) -> Hyperparameters:
    return msgspec.structs.replace(SMALL, **chosen)


# ---- each stage --------------------------------------------------------------------------------------------------


def test_clipping_by_hand() -> None:
    """Norms 5, 0.5 and 0 against 1: the first is scaled by 1/5, the others stay."""
    np.testing.assert_allclose(clip(CODES, 1.0), [[0.6, 0.8], [0.3, 0.4], [0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(ClipAndNoise(1.0, 0.0, b"").up(CODES, 1), clip(CODES, 1.0))


def test_the_noise_has_the_spread_it_is_asked_for_and_is_new_in_each_round() -> None:
    stage, zeros = ClipAndNoise(1.0, 2.5, SECRET), np.zeros((20_000, 4), np.float32)
    noisy = stage.up(zeros, 1)
    assert noisy.dtype == np.float32 and noisy.std() == pytest.approx(2.5, rel=0.02) and abs(noisy.mean()) < 0.03
    assert abs(float(np.corrcoef(noisy.ravel(), stage.up(zeros, 2).ravel())[0, 1])) < 0.02
    np.testing.assert_array_equal(stage.down(CODES, 1), CODES)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_a_rotation_keeps_distances_and_comes_back(width: int, round: int) -> None:
    codes = np.random.default_rng(round).normal(size=(7, width)).astype(np.float32)
    Q, stage = rotation(SECRET, round, width), Rotate(SECRET)
    np.testing.assert_allclose(Q @ Q.T, np.eye(width), atol=1e-12)
    np.testing.assert_allclose(stage.up(codes, round)[0], Q @ codes[0], atol=1e-5)
    np.testing.assert_allclose(stage.down(stage.up(codes, round), round), codes, atol=1e-5)


def test_rotations_depend_on_secret_and_round_and_are_uniform() -> None:
    assert not np.allclose(rotation(SECRET, 1, 5), rotation(SECRET, 2, 5))
    assert not np.allclose(rotation(SECRET, 1, 5), rotation(b"another secret of ours", 1, 5))
    ours = np.array([np.trace(rotation(SECRET, round, 3)) for round in range(4000)])
    theirs = np.array([np.trace(Q) for Q in ortho_group.rvs(3, size=4000, random_state=0)])
    assert abs(ours.mean() - theirs.mean()) < 0.08 and abs(ours.std() - theirs.std()) < 0.05


# ---- together ----------------------------------------------------------------------------------------------------


def test_stages_stand_in_order_and_say_so() -> None:
    hyper = with_defences(code_clip=2.0, code_noise=0.5, code_rotation=True)
    assert list(defences(hyper, HERE)) == [ClipAndNoise(2.0, 1.0, HERE.own), Rotate(SECRET)]
    assert in_words(hyper) == (
        "clipped to length 2, noise of standard deviation 1 on each of their numbers, rotated anew each round by a "
        "secret of the devices"
    )
    assert in_words(SMALL) == "" and defended(method("gca"), SMALL, None) is method("gca")


def test_a_defended_device_uploads_what_the_stages_leave_and_aligns_to_what_they_give_back() -> None:
    """The same round twice, with the same draw of records: as it is, and with a rotation. The centroids are the first
    four codes as uploaded, so that both devices are aligned to the same ones, each in its own coordinates."""
    hyper, samples = with_defences(code_rotation=True), records(np.random.default_rng(2), 40)
    context = LocalContext(hyper, trainer_for(hyper, FEATURES), samples, 7, "dev-0001", 3, lambda *told: None)
    support = np.full(4, 5.0, np.float32)
    ended = []
    for half in (Defended(Gca(), (), HERE.seed), defended(Gca(), hyper, HERE)):
        state, sent = half.before_upload(half.initial(context), context)
        broadcast = {"centroids": sent["latents"][:4], "support": support}
        ended.append((sent["latents"], half.after_broadcast(state, context, broadcast).parameters))
    np.testing.assert_allclose(ended[1][0], ended[0][0] @ rotation(SECRET, 3, 3).T, atol=1e-5)
    np.testing.assert_allclose(ended[1][1], ended[0][1], atol=1e-4)
    assert np.abs(ended[1][0] - ended[0][0]).max() > 0.1


def test_from_the_seed_of_the_run_nobody_can_tell_the_records_behind_defended_codes() -> None:
    """A clip that cuts nothing leaves codes as they are, of other records than the run's seed says: those of a seed
    that follows from the device's own secret, and is never shown."""
    hyper, samples = with_defences(code_clip=1e6), records(np.random.default_rng(2), 40)
    context = LocalContext(hyper, trainer_for(hyper, FEATURES), samples, 7, "dev-0001", 1, lambda *told: None)
    other = Secrets(b"the own secret of another device", SECRET)
    halves = [defended(Gca(), hyper, secrets) for secrets in (HERE, HERE, other)]
    drawn = []
    for half in halves:
        state, sent = half.before_upload(half.initial(context), context)
        codes = context.trainer.encode(state.parameters, samples)
        drawn.append([int(np.square(codes - code).sum(axis=1).argmin()) for code in sent["latents"]])
    public = select_upload(context).tolist()
    assert drawn[0] == drawn[1] == select_upload(replace(context, seed=HERE.seed)).tolist()
    assert sorted(drawn[0]) != sorted(public) and sorted(drawn[0]) != sorted(drawn[2]) != sorted(public)
    assert str(HERE.seed) not in repr(halves[0])
    np.testing.assert_array_equal(halves[0].initial(context).parameters, Gca().initial(context).parameters)


def test_only_codes_can_be_defended() -> None:
    hyper, samples = with_defences(code_clip=1.0), records(np.random.default_rng(2), 40)
    context = LocalContext(hyper, trainer_for(hyper, FEATURES), samples, 7, "dev-0001", 1, lambda *told: None)
    half = defended(method("fedavg"), hyper, HERE)
    with pytest.raises(ConfigError, match="only codes can be defended"):
        half.before_upload(half.initial(context), context)


def test_a_rotation_of_each_round_breaks_linkage(tmp_path: Path) -> None:
    rates = []
    for rotated in (False, True):
        victim = load_victim(finished_study(tmp_path / f"{rotated}", code_rotation=rotated), 1)
        earlier, later = (upload(victim, victim.state, round) for round in (3, 4))
        rates.append(link(earlier.codes, earlier.rows, later.codes, later.rows).rate)
    assert rates[0] > 0.8 and rates[1] < 0.5 * rates[0]


# ---- secrets -----------------------------------------------------------------------------------------------------


def test_emulated_secrets_are_shared_where_they_must_be_and_nowhere_else() -> None:
    a, b, again, other = (emulated(*key) for key in ((1, "a"), (1, "b"), (1, "a"), (2, "a")))
    assert a == again and a.shared == b.shared != other.shared and len({a.own, b.own, other.own, a.shared}) == 4
    assert SECRET.decode() not in repr(HERE) + repr(Rotate(SECRET)) + repr(ClipAndNoise(1.0, 1.0, SECRET))
    drawn = {private_stream(*key).random() for key in ((SECRET, "x", 1), (SECRET, "x", 2), (SECRET, "y", 1))}
    assert len(drawn) == 3 and private_stream(SECRET, "x", 1).random() in drawn
    assert a.seed == b.seed == 1, "a study can be repeated from its seed"
    assert Secrets(SECRET).seed == Secrets(SECRET, b"shared").seed != Secrets(b"the device's own secret").seed


def test_no_two_runs_and_no_two_devices_draw_the_same_noise_though_they_have_the_same_secrets() -> None:
    """Else the difference of two uploads would be that of their codes. The rotation is all devices', of one run."""
    keys = (("r.00000001", "a"), ("r.00000002", "a"), ("r.00000001", "b"))
    first, again, other = (HERE.of_run(*key) for key in keys)
    assert first == HERE.of_run(*keys[0]) and len({HERE.own, first.own, again.own, other.own}) == 4
    assert first.shared == other.shared and len({HERE.shared, first.shared, again.shared}) == 3
    assert len({secrets.seed for secrets in (HERE, first, again, other)}) == 4
    assert Secrets(SECRET).of_run(*keys[0]).shared is None
    study = emulated(7, "a")
    assert study.of_run(*keys[0]) == study, "a study can be repeated, and its incarnations are drawn"


@pytest.mark.parametrize(("size", "told"), [(15, "of 15 bytes"), (65, "more than 64 bytes")])
def test_a_secret_that_can_be_guessed_or_is_no_key_is_refused(tmp_path: Path, size: int, told: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(bytes(size))
    with pytest.raises(ConfigError, match=told):
        read_secret(file)
    file.write_bytes(SECRET)
    assert read_secret(file) == SECRET
    with pytest.raises(EnvironmentFault, match="urandom"):
        read_secret(tmp_path / "absent")


def test_a_device_without_the_secrets_that_a_run_takes_says_so() -> None:
    with pytest.raises(ConfigError, match="--secret FILE"):
        defended(Gca(), with_defences(code_rotation=True), Secrets(b"own"))
    with pytest.raises(ConfigError, match="code_clip, which is missing"):
        defended(Gca(), with_defences(code_noise=1.0), HERE)
    for chosen in ({"code_clip": 1.0}, {"code_rotation": True}):
        with pytest.raises(ConfigError, match="no secret"):
            defended(Gca(), with_defences(**chosen), None)
