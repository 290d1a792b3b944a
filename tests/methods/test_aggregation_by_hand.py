"""Each aggregation worked out by hand for two devices with mixed signs, and what hostile uploads are told."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from methods.runs import HYPER, SEED, SHARING, WIDTH, P, server_half, uploads
from msgspec.structs import replace as with_fields
from server.driver import Driver, notes, told
from server.driver import plan as a_plan

from broker_server.methods.averaging import as_broadcast
from broker_server.methods.base import Upload
from broker_server.methods.dp_fedavg import DpFedAvgServer
from broker_server.methods.fedavg import MAX_PARAMETER, FedAvgServer
from broker_server.methods.fednova import FedNovaServer
from broker_server.rounds.coordinator import Coordinator
from edge_client.errors import GcaError, ProtocolError
from edge_client.protocol.codec import FP32, Arrays
from edge_client.protocol.messages import Reject
from edge_client.seeds import stream


def after(method, given, theta_r: list[float], round: int = 2) -> list[float]:
    """Aggregate these uploads of a round that began with theta_r."""
    previous = {"parameters": np.array(theta_r, np.float32)}
    return method.aggregate(round, given, previous).broadcast["parameters"].tolist()


def test_fedavg_by_hand() -> None:
    """N = (1, 3): p = (1/4, 3/4). (2, -4, 0.5)/4 + 3 (-2, 4, 1.5)/4 = (-1, 2, 1.25), whatever theta_r was."""
    given = uploads((1, [2, -4, 0.5]), (3, [-2, 4, 1.5]))
    for theta_r in ([0, 0, 0], [7, -7, 1e-3]):
        assert after(FedAvgServer(HYPER, SEED), given, theta_r) == [-1, 2, 1.25]


def test_fednova_by_hand() -> None:
    """N = (10, 30), batches of 10, 2 epochs: tau = (2, 6), p = (1/4, 3/4), tau_eff = 2/4 + 18/4 = 5.

    theta_r = (1, -1, 0.5), delta = (4, -2, 0) and (-6, 3, 1), delta/tau = (2, -1, 0) and (-1, 1/2, 1/6).
    Their mean under p is (-1/4, 1/8, 1/8); times 5 and on top of theta_r: (-1/4, -3/8, 9/8).
    """
    assert (HYPER.batch_size, HYPER.local_epochs) == (10, 2)
    given = uploads((10, [5, -3, 0.5]), (30, [-5, 2, 1.5]))
    assert after(FedNovaServer(HYPER, SEED), given, [1, -1, 0.5]) == [-0.25, -0.375, 1.125]
    previous = {"parameters": np.array([1, -1, 0.5], np.float32)}
    assert FedNovaServer(HYPER, SEED).aggregate(2, given, previous).diagnostics == {"tau_eff": 5.0}


@pytest.mark.parametrize(("samples", "tau"), [(1, 2), (10, 2), (11, 4), (39, 8), (40, 8), (41, 10)])
def test_the_last_short_batch_is_a_step_too(samples: int, tau: int) -> None:
    assert FedNovaServer(HYPER, SEED).steps(samples) == tau


def test_clipping_by_hand() -> None:
    """theta_r = (1, -1), delta = (3, -4) of norm 5 and (-0.75, 1) of norm 1.25, N equal, clip 2.5.

    The first is halved to (1.5, -2), the second stays; their mean is (0.375, -0.5), so theta = (1.375, -1.5).
    """
    method = DpFedAvgServer(HYPER, SEED, clip_norm=2.5, noise_multiplier=0.0)
    given = uploads((8, [4, -5]), (8, [0.25, 0]))
    assert after(method, given, [1, -1]) == [1.375, -1.5]
    diagnostics = method.aggregate(2, given, {"parameters": np.array([1, -1], np.float32)}).diagnostics
    assert diagnostics == {"update_norms": {"a": 5.0, "b": 1.25}, "clipped": 1}


def test_an_update_of_nothing_is_not_divided_by_its_norm() -> None:
    method = DpFedAvgServer(HYPER, SEED, clip_norm=1.0, noise_multiplier=0.0)
    assert after(method, uploads((8, [1, -1])), [1, -1]) == [1, -1]


def test_noise_has_the_standard_deviation_sigma_over_c_and_a_stream_of_its_own() -> None:
    """sigma = 3, C = 2: 1.5. Of 100,000 draws the sample deviation is within 1 % and the mean within 0.03 of nothing
    with more than six standard errors to spare."""
    zeros = [0.0] * 100_000
    given = uploads((8, zeros), (8, zeros))
    noisy = DpFedAvgServer(HYPER, SEED, noise_multiplier=3.0)
    first, again, next_round = after(noisy, given, zeros), after(noisy, given, zeros), after(noisy, given, zeros, 3)
    assert first == again and first != next_round
    assert np.std(first) == pytest.approx(1.5, rel=0.01) and abs(np.mean(first)) < 0.03
    assert first[:5] == (stream(SEED, "dp", 2).standard_normal(100_000) * 1.5).astype(np.float32)[:5].tolist()
    assert first != after(DpFedAvgServer(HYPER, SEED + 1, noise_multiplier=3.0), given, zeros)


def test_sums_are_kept_in_float64_and_rounded_once() -> None:
    """The mean of (2^24, 1, 1, 1) is 4194304.75, and the nearest float32 4194305. Added up in float32 it would stay
    at 2^22 = 4194304, each quarter being lost."""
    given = uploads((9, [2.0**24]), (9, [1.0]), (9, [1.0]), (9, [1.0]))
    assert after(FedAvgServer(HYPER, SEED), given, [0.0]) == [4194305.0]


@pytest.mark.parametrize("name", SHARING)
def test_the_order_in_which_uploads_are_given_shows_in_no_bit(name: str) -> None:
    rng = np.random.default_rng(0)
    given = uploads(*((int(n), rng.normal(size=50).tolist()) for n in rng.integers(1, 99, size=7)))
    backwards = dict(reversed(given.items()))
    method, theta_r = server_half(name), rng.normal(size=50).tolist()
    assert after(method, given, theta_r) == after(method, backwards, theta_r)


def test_round_one_starts_from_the_shared_initial_model() -> None:
    """With all uploads equal to it, the clipped updates are nothing, so that it comes back."""
    method = DpFedAvgServer(HYPER, SEED, clip_norm=1e-3, noise_multiplier=0.0)
    theta = method.start(1, uploads((4, [0.0] * P)), None)
    given = {"a": Upload(4, WIDTH, {"parameters": theta}), "b": Upload(9, WIDTH, {"parameters": theta})}
    assert method.aggregate(1, given).broadcast["parameters"].tobytes() == theta.tobytes()


def test_a_lost_aggregate_is_an_error_and_not_the_initial_model() -> None:
    with pytest.raises(GcaError, match="aggregate of round 4 is lost"):
        FedNovaServer(HYPER, SEED).aggregate(5, uploads((4, [0.0] * P)), None)


def test_a_sum_beyond_float32_is_an_error() -> None:
    with pytest.raises(GcaError, match="not finite"):
        as_broadcast(np.array([1e39]))


# ---- hostile uploads -----------------------------------------------------------------------------------------------

HOSTILE: dict[str, Arrays] = {
    "nothing": {},
    "another name": {"latents": np.zeros(P, np.float32)},
    "more than asked": {"parameters": np.zeros(P, np.float32), "x": np.zeros(1, np.float32)},
    "float64": {"parameters": np.zeros(P)},
    "integers": {"parameters": np.zeros(P, np.int32)},
    "too short": {"parameters": np.zeros(P - 1, np.float32)},
    "empty": {"parameters": np.zeros(0, np.float32)},
    "a matrix": {"parameters": np.zeros((1, P), np.float32)},
    "a scalar": {"parameters": np.float32(1.0)},  # type: ignore[dict-item]
    "NaN": {"parameters": np.full(P, np.nan, np.float32)},
    "infinity": {"parameters": np.array([*[0] * (P - 1), -np.inf], np.float32)},
    "enormous": {"parameters": np.array([*[0] * (P - 1), -3e38], np.float32)},
}
SENDER = Upload(40, WIDTH, {})


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("upload", HOSTILE.values(), ids=HOSTILE)
def test_hostile_uploads_are_refused(name: str, upload: Arrays) -> None:
    with pytest.raises(ProtocolError):
        server_half(name).check(SENDER, upload)


def test_a_sound_upload_is_taken_up_to_the_largest_parameter() -> None:
    method = server_half("fedavg")
    method.check(SENDER, {"parameters": np.full(P, -MAX_PARAMETER, np.float32)})
    assert method.upload_limit(SENDER) == FP32 * P


def driver() -> Driver:
    run = Driver(a_plan(method="fedavg", hyper=with_fields(HYPER, hidden=(4,), latent_dim=2)))
    run.coordinator = Coordinator(run.plan, FedAvgServer(run.plan.hyper, SEED))
    return run


def test_a_hostile_device_is_told_why_and_the_round_goes_on_without_it() -> None:
    run = driver()
    run.start("a", "b")
    refused = run.upload("a", 1, 2.0, {"parameters": np.full(3, np.nan, np.float32)})
    (reject,) = told(refused, Reject)
    assert reject.reason == "invalid" and "parameters must be float32 (" in reject.detail
    assert "upload of a refused" in notes(refused)[0]
    count = FedAvgServer(run.plan.hyper, SEED).upload_limit(SENDER) // FP32
    finished = run.upload("b", 1, 3.0, {"parameters": np.ones(count, np.float32)})
    (wish,) = [action for action in finished if type(action).__name__ == "Aggregate"]
    assert list(wish.uploads) == ["b"] and wish.uploads["b"].samples == 10 and wish.previous is None


def test_more_bytes_than_the_model_has_are_refused_by_the_first_chunk() -> None:
    run = driver()
    run.start("a", "b")
    first, *_ = run.chunks("a", 1, {"parameters": np.zeros(100_000, np.float32)})
    (reject,) = told(run.chunk(first, 2.0), Reject)
    assert reject.reason == "invalid" and "at most" in reject.detail


def test_the_next_round_is_given_what_was_broadcast_and_uploads_are_let_go() -> None:
    run = driver()
    run.start("a", "b")
    theta = {"parameters": np.arange(61, dtype=np.float32)}
    count = FedAvgServer(run.plan.hyper, SEED).upload_limit(SENDER) // FP32
    assert count == 5 * 4 + 4 + 4 * 2 + 2 + 2 * 4 + 4 + 4 * 5 + 5 == 71
    for device in "ab":
        run.upload(device, 1, 2.0, {"parameters": np.ones(count, np.float32)})
    assert run.coordinator.collection is not None and run.coordinator.collection.uploads == {}
    run.aggregated(3.0, FedAvgServer(run.plan.hyper, SEED).aggregate(1, {"a": Upload(1, 5, theta)}))
    run.upload("a", 2, 4.0, {"parameters": np.ones(count, np.float32)})
    answer = run.upload("b", 2, 4.0, {"parameters": np.ones(count, np.float32)})
    (wish,) = [action for action in answer if type(action).__name__ == "Aggregate"]
    assert wish.previous["parameters"].tolist() == theta["parameters"].tolist()


# ---- identities of the server halves -------------------------------------------------------------------------------

floats = st.floats(-1e6, 1e6, width=32)
sizes = st.lists(st.integers(31, 40), min_size=1, max_size=5)  # of 4 batches each, so tau is the same


@settings(deadline=None)
@given(sizes=sizes, data=st.data())
def test_fednova_with_equal_steps_and_dp_without_clip_and_noise_are_fedavg_to_the_bit(sizes, data) -> None:
    vectors = st.lists(floats, min_size=3, max_size=3)
    given = uploads(*((size, data.draw(vectors)) for size in sizes))
    previous = {"parameters": np.array(data.draw(vectors), np.float32)}
    expected = FedAvgServer(HYPER, SEED).aggregate(2, given, previous).broadcast["parameters"].tobytes()
    unlimited = DpFedAvgServer(HYPER, SEED, clip_norm=np.inf, noise_multiplier=0.0)
    for method in (FedNovaServer(HYPER, SEED), unlimited):
        assert method.aggregate(2, given, previous).broadcast["parameters"].tobytes() == expected


@settings(deadline=None)
@given(theta=st.lists(floats | st.just(-0.0), min_size=1, max_size=8), samples=st.integers(1, 2**32), data=st.data())
def test_the_mean_of_one_model_is_that_model_to_the_bit(theta, samples, data) -> None:
    previous = {"parameters": np.array(data.draw(st.permutations(theta)), np.float32)}
    for method in (FedAvgServer(HYPER, SEED), FedNovaServer(HYPER, SEED)):
        got = method.aggregate(2, uploads((samples, theta)), previous).broadcast["parameters"]
        assert got.tobytes() == np.array(theta, np.float32).tobytes()
