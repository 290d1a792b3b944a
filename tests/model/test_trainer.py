"""What every caller of a trainer relies on: purity, equal bits, the slice that moves, and typed refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model.engines import ENGINES, trainer_on, vectors

from edge_client.errors import ConfigError, GcaError, ProtocolError
from edge_client.model.autoencoder import Architecture, initial_parameters
from edge_client.model.trainer import ModelState, nearest_centroids

ARCH = Architecture(4, hidden=(8,), latent_dim=3)
STEP = {"batch_size": 50}
RATES = np.array([1e-3])


@pytest.fixture(params=ENGINES)
def trainer(request):
    return trainer_on(request.param, ARCH)


@pytest.fixture
def problem(trainer):
    rng = np.random.default_rng(7)
    return {
        "trainer": trainer,
        "state": trainer.initial(rng),
        "samples": rng.standard_normal((120, 4)).astype(np.float32),
        "order": rng.permutation(120),
        "centroids": rng.standard_normal((5, 3)).astype(np.float32),
        "weights": rng.uniform(0.5, 2, 5).astype(np.float32),
    }


def reconstruct(problem, **changes):
    p = {**problem, **changes}
    state, losses = p["trainer"].reconstruct(
        p["state"], p["samples"], p["order"][None], **STEP, learning_rates=RATES, proximal=p.get("proximal")
    )
    return state, losses[0]


def align(problem, **changes):
    p = {**problem, **changes}
    to = {"centroids": p["centroids"], "weights": p["weights"]}
    state, losses = p["trainer"].align(p["state"], p["samples"], p["order"][None], **to, **STEP, learning_rates=RATES)
    return state, losses[0]


@pytest.mark.parametrize("phase", [reconstruct, align])
def test_arguments_stay_untouched_and_the_result_shares_no_memory(problem, phase):
    arrays = [*vectors(problem["state"]), *(a for a in problem.values() if isinstance(a, np.ndarray))]
    before = [a.copy() for a in arrays]
    for array in arrays:
        array.flags.writeable = False
    after, _ = phase(problem)
    for array, copy in zip(arrays, before, strict=True):
        assert np.array_equal(array, copy)
    for new in vectors(after):
        assert not any(np.shares_memory(new, old) for old in arrays)
    assert not np.array_equal(after.parameters, problem["state"].parameters)


@pytest.mark.parametrize("phase", [reconstruct, align])
def test_equal_arguments_give_equal_bits(problem, phase):
    (one, loss_one), (two, loss_two) = phase(problem), phase(problem)
    assert loss_one == loss_two
    assert all(a.tobytes() == b.tobytes() for a, b in zip(vectors(one), vectors(two), strict=True))


def test_alignment_leaves_the_decoder_and_its_optimiser_alone(problem):
    trained, _ = reconstruct(problem)
    aligned, _ = align(problem, state=trained)
    cut = ARCH.encoder_parameters
    for before, after in zip(vectors(trained), vectors(aligned), strict=True):
        assert np.array_equal(before[cut:], after[cut:])
        assert not np.array_equal(before[:cut], after[:cut])
    assert (trained.encoder_steps, trained.decoder_steps, trained.epochs) == (3, 3, 1)
    assert (aligned.encoder_steps, aligned.decoder_steps, aligned.epochs) == (6, 3, 2)


def test_an_order_may_repeat_or_leave_out_records(problem):
    """Twice records 0 to 49 equals two epochs over them."""
    twice, _ = reconstruct(problem, order=np.tile(np.arange(50), 2))
    once, _ = reconstruct(problem, order=np.arange(50))
    again, _ = reconstruct(problem, state=once, order=np.arange(50))
    assert np.array_equal(twice.parameters, again.parameters)


def test_training_lowers_both_losses(problem):
    state, losses = problem["state"], []
    for _ in range(100):
        state, loss = reconstruct(problem, state=state)
        losses.append(loss)
    assert losses[-1] < 0.9 * losses[0]
    losses = []
    for _ in range(100):
        state, loss = align(problem, state=state)
        losses.append(loss)
    assert losses[-1] < 0.9 * losses[0]


def test_mu_zero_is_no_proximal_term(problem):
    plain, _ = reconstruct(problem)
    zero, _ = reconstruct(problem, proximal=(0.0, np.ones(ARCH.parameters, np.float32)))
    assert np.array_equal(plain.parameters, zero.parameters)


def test_a_fresh_optimizer_keeps_the_model_and_the_epoch_count(problem):
    trained, _ = reconstruct(problem)
    fresh = trained.with_fresh_optimizer()
    assert fresh.parameters is trained.parameters
    assert not fresh.first_moment.any() and not fresh.second_moment.any()
    assert (fresh.encoder_steps, fresh.decoder_steps, fresh.epochs) == (0, 0, 1)


def test_score_is_the_squared_reconstruction_error(problem):
    """Zero parameters reconstruct zero, so that s(x) = ||x||^2; (1, 2, 3, 4) scores 30."""
    zero = np.zeros(ARCH.parameters, np.float32)
    x = np.array([[1, 2, 3, 4], [0, 0, 0, 0.5]], np.float32)
    assert problem["trainer"].score(zero, x).tolist() == [30.0, 0.25]
    assert problem["trainer"].score(zero, x).dtype == problem["trainer"].encode(zero, x).dtype == np.float32


def test_a_record_beyond_the_number_range_scores_infinity(problem):
    x = np.array([[1e38, -1e38, 1e38, 1e38], [0, 0, 0, 0]], np.float32)
    far, near = problem["trainer"].score(problem["state"].parameters, x)
    assert far == np.inf and np.isfinite(near)


def test_nearest_centroid_ties_go_to_the_lowest_index():
    centroids = np.array([[1, 0], [-1, 0], [1, 0]], np.float32)
    codes = np.array([[0, 3], [2, 0], [-2, 0]], np.float32)
    assert nearest_centroids(codes, centroids).tolist() == [0, 0, 1]


def test_nearest_centroid_far_from_the_origin():
    """At 1e4 the square is 1e8, where float32 is spaced by 8: an expanded square could not tell 0.01 from 0.04."""
    centroids = np.array([[1e4, 1e4], [1e4 + 0.25, 1e4]], np.float32)
    codes = np.array([[1e4 + 0.0625, 1e4], [1e4 + 0.1875, 1e4]], np.float32)
    assert nearest_centroids(codes, centroids).tolist() == [0, 1]


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 2100), components=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_nearest_centroid_equals_brute_force(rows, components, seed):
    rng = np.random.default_rng(seed)
    codes, centroids = rng.standard_normal((rows, 2)), rng.standard_normal((components, 2))
    brute = [int(np.argmin([np.sum((z - mu) ** 2) for mu in centroids])) for z in codes]
    assert nearest_centroids(codes, centroids).tolist() == brute


def bad(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"samples": np.zeros((0, 4), np.float32)}, ConfigError, "no records"),
        ({"samples": np.zeros((120, 3), np.float32)}, ConfigError, r"expected shape \(N, 4\)"),
        ({"samples": np.zeros(4, np.float32)}, ConfigError, r"expected shape \(N, 4\)"),
        ({"samples": np.zeros((120, 4))}, ConfigError, "astype"),
        ({"samples": bad(np.zeros((120, 4), np.float32), (17, 2), np.nan)}, ConfigError, "record 17 "),
        ({"order": np.array([0, 120])}, ConfigError, "outside the 120"),
        ({"order": np.array([-1])}, ConfigError, "outside"),
        ({"order": np.array([], np.int64)}, ConfigError, "neither zero"),
        ({"order": np.array([0.0])}, ConfigError, "integers"),
        ({"state": ModelState.fresh(np.zeros(9, np.float32))}, ConfigError, "another architecture"),
        ({"centroids": np.zeros((0, 3), np.float32)}, ProtocolError, "K >= 1"),
        ({"centroids": np.zeros((5, 2), np.float32)}, ProtocolError, r"\(5, 2\)"),
        ({"centroids": np.full((5, 3), np.inf, np.float32)}, ProtocolError, "infinity"),
        ({"centroids": np.zeros((5, 3), np.int32)}, ProtocolError, "int32"),
        ({"weights": np.ones(4, np.float32)}, ProtocolError, "5 centroids"),
        ({"weights": bad(np.ones(5, np.float32), 0, -1)}, ProtocolError, "negative"),
    ],
)
def test_unusable_arguments_are_refused_by_name(problem, change, error, words):
    with pytest.raises(error, match=words):
        align(problem, **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rates": np.array([0.0])}, "learning_rate"),
        ({"learning_rates": np.array([np.nan])}, "learning_rate"),
        ({"learning_rates": np.array([1e-3, 1e-3])}, "1 epochs"),
        ({"orders": np.arange(120)}, "shape"),
    ],
)
def test_unusable_settings_are_refused(problem, change, words):
    usable = {"orders": problem["order"][None], "batch_size": 50, "learning_rates": RATES}
    with pytest.raises(ConfigError, match=words):
        problem["trainer"].reconstruct(problem["state"], problem["samples"], **{**usable, **change})


def test_epochs_in_one_call_are_the_bits_of_single_calls(problem):
    orders = np.stack([np.random.default_rng(i).permutation(120) for i in range(3)])
    rates = np.array([1e-3, 1e-4, 1e-5])
    together, losses = problem["trainer"].reconstruct(
        problem["state"], problem["samples"], orders, **STEP, learning_rates=rates
    )
    state = problem["state"]
    for epoch in range(3):
        one = slice(epoch, epoch + 1)
        state, loss = problem["trainer"].reconstruct(
            state, problem["samples"], orders[one], **STEP, learning_rates=rates[one]
        )
        assert loss[0] == losses[epoch]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(vectors(state), vectors(together), strict=True))
    assert (state.encoder_steps, state.epochs) == (together.encoder_steps, together.epochs) == (9, 3)


def test_divergence_is_an_error_not_nan(problem):
    with pytest.raises(GcaError, match="diverged"):
        reconstruct(problem, samples=problem["samples"] * np.float32(1e30))
    with pytest.raises(GcaError, match="diverged"):
        align(problem, centroids=np.full((5, 3), 1e30, np.float32))


def test_float64_parameters_from_the_same_stream_are_the_same_numbers():
    single, double = (initial_parameters(ARCH, np.random.default_rng(3), t) for t in (np.float32, np.float64))
    assert np.array_equal(single, double.astype(np.float32))
