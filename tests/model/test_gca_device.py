"""The device half of Algorithm 1: weights, upload, broadcast, and one round as the lines say."""

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.errors import ConfigError, GcaError, ProtocolError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods import context as context_module
from edge_client.methods.base import DeviceMethod
from edge_client.methods.context import LocalContext, epoch_order, initial_state, learning_rates
from edge_client.methods.gca import (
    Gca,
    inverse_support_weights,
    read_broadcast,
    reconstruction_phase,
    select_upload,
    uniform_weights,
    upload_size,
)
from edge_client.model.autoencoder import Architecture
from edge_client.model.trainer import ModelState, NumpyTrainer

METHOD: DeviceMethod = Gca()
SAMPLES = np.random.default_rng(0).standard_normal((130, 5)).astype(np.float32)


def a_context(**changes):
    """Return a small device's context; keywords that Hyperparameters knows go there, the others to the context."""
    own = {name: changes.pop(name) for name in list(changes) if name in LocalContext.__dataclass_fields__}
    chosen = {"hidden": (16, 8), "latent_dim": 3, "recon_epochs": 2, "align_epochs": 3, "upload_fraction": 0.5}
    defaults = {
        "hyper": Hyperparameters(**{**chosen, **changes}),
        "trainer": NumpyTrainer(Architecture(5, (16, 8), 3)),
        "samples": SAMPLES,
        "seed": 100,
        "device": "d007",
        "round": 4,
        "observe": lambda *_: None,
    }
    return LocalContext(**{**defaults, **own})


def a_broadcast(components=4):
    rng = np.random.default_rng(1)
    return {
        "centroids": rng.standard_normal((components, 3)).astype(np.float32),
        "support": rng.uniform(0, 90, components).astype(np.float32),
    }


# Weights, eq. 4


def weights_of(support, gamma=1.0, max_weight=6.0, epsilon=1e-6):
    return inverse_support_weights(np.array(support), gamma=gamma, max_weight=max_weight, epsilon=epsilon)


def test_weights_by_hand():
    """N = (1, 9, 20): mean 10, ratios (10, 10/9, 1/2), cut at 6, mean 137/54, so w = (324, 60, 27)/137."""
    assert weights_of([1.0, 9.0, 20.0], epsilon=1e-12) == pytest.approx(np.array([324, 60, 27]) / 137, rel=1e-9)


def test_gamma_and_epsilon_by_hand():
    """N = (0, 8), gamma = 1/2, w_max = 100, eps = 2: N_hat = (2, 8), mean 5, w_tilde = (sqrt(5/2), sqrt(5/8)).

    sqrt(5/2) = 2 sqrt(5/8); with s = sqrt(5/8), mean = 3 s / 2, so w = (2 s, s) / (3 s / 2 + 2).
    """
    s = np.sqrt(5 / 8)
    assert weights_of([0.0, 8.0], gamma=0.5, max_weight=100.0, epsilon=2.0) == pytest.approx(
        np.array([2 * s, s]) / (1.5 * s + 2)
    )


@settings(deadline=None)
@given(st.lists(st.floats(0, 2.0**127, width=32), min_size=1, max_size=80), st.floats(0, 10))
def test_weights_are_finite_have_mean_one_and_never_grow_with_support(support, gamma):
    weights = weights_of(np.array(support, np.float32), gamma=gamma)
    assert np.isfinite(weights).all() and (weights >= 0).all()
    # w_tilde is at least 1 for some k, so that its mean is at least 1/K and epsilon costs at most K * 1e-6.
    assert weights.mean() == pytest.approx(1.0, abs=1e-6 * len(support) + 1e-9)
    assert (np.diff(weights[np.argsort(support)]) <= 1e-12).all()


def test_equal_supports_are_the_uniform_weights():
    assert weights_of([5.0, 5.0, 5.0]) == pytest.approx(uniform_weights(np.zeros(3)), rel=2e-6)


# Upload, lines 16-18


@pytest.mark.parametrize(
    ("fraction", "records", "size"),
    [(0.1, 1230, 123), (0.29, 100, 29), (0.57, 100, 57), (0.1, 9, 0), (0.25, 564, 141), (1.0, 7, 7), (1e-7, 10**7, 1)],
)
def test_upload_size_is_the_decimal_floor(fraction, records, size):
    assert upload_size(fraction, records) == size


@settings(deadline=None)
@given(st.integers(1, 1000), st.integers(0, 100_000))
def test_upload_size_is_exact_for_every_permille(permille, records):
    assert upload_size(permille / 1000, records) == Fraction(permille, 1000) * records // 1


def test_upload_size_reads_numpy_numbers_too():
    assert upload_size(np.float64(0.29), 100) == 29


@settings(deadline=None)
@given(st.integers(2, 200), st.integers(1, 100), st.integers(1, 9))
def test_selection_is_distinct_in_range_and_keyed(records, percent, round):
    context = a_context(samples=np.zeros((records, 5), np.float32), upload_fraction=percent / 100, round=round)
    size = percent * records // 100
    if size == 0:
        with pytest.raises(ConfigError, match=r"device d007.*raise upload_fraction"):
            select_upload(context)
        return
    chosen = select_upload(context)
    assert len(set(chosen.tolist())) == len(chosen) == size
    assert chosen.min() >= 0 and chosen.max() < records
    assert np.array_equal(chosen, select_upload(context))


def test_selection_is_uniform_and_differs_by_round_and_device():
    """Over 2,000 rounds each of 10 records is drawn about 2,000 * 0.3 = 600 times; std about 20."""
    base = a_context(samples=np.zeros((10, 5), np.float32), upload_fraction=0.3)
    counts = np.zeros(10)
    for round in range(2000):
        counts[select_upload(replace(base, round=round))] += 1
    assert counts.sum() == 6000 and np.abs(counts - 600).max() < 110
    wide = a_context()
    assert not np.array_equal(select_upload(wide), select_upload(replace(wide, round=5)))
    assert not np.array_equal(select_upload(wide), select_upload(replace(wide, device="d008")))
    assert not np.array_equal(select_upload(wide), select_upload(replace(wide, seed=200)))


def test_no_records_is_a_typed_error():
    context = a_context(samples=np.zeros((0, 5), np.float32))
    with pytest.raises(ConfigError, match="0 records"):
        METHOD.before_upload(METHOD.initial(context), context)


# Broadcast, line 24


@pytest.mark.parametrize(
    "change",
    [
        {"centroids": np.zeros((0, 3), np.float32), "support": np.zeros(0, np.float32)},
        {"centroids": np.zeros((4, 2), np.float32)},
        {"centroids": np.full((4, 3), np.nan, np.float32)},
        {"centroids": np.zeros((4, 3), "S4")},
        {"support": np.ones(3, np.float32)},
        {"support": np.array([1, 2, 3, -1], np.float32)},
        {"support": np.array([1, 2, 3, np.inf], np.float32)},
        {"parameters": np.zeros(9, np.float32)},
    ],
)
def test_an_unusable_broadcast_is_refused_before_use(change):
    with pytest.raises(ProtocolError):
        read_broadcast({**a_broadcast(), **change}, 3)


@pytest.mark.parametrize("missing", ["centroids", "support"])
def test_an_incomplete_broadcast_is_refused(missing):
    broadcast = a_broadcast()
    del broadcast[missing]
    with pytest.raises(ProtocolError, match="expected centroids and support"):
        read_broadcast(broadcast, 3)


# One round


def a_round(context, state=None, broadcast=None):
    state = METHOD.initial(context) if state is None else state
    state, upload = METHOD.before_upload(state, context)
    return METHOD.after_broadcast(state, context, broadcast or a_broadcast()), upload


def test_a_round_calls_the_phases_as_the_algorithm_says():
    """Against the trainer called by hand: 2 epochs of eq. 2, the codes, 3 epochs of eq. 5 with the weights of eq. 4."""
    seen = []
    context = a_context(observe=lambda *event: seen.append(event))
    ours, upload = a_round(context)

    trainer, step, broadcast = context.trainer, {"batch_size": 50, "learning_rates": np.array([1e-3])}, a_broadcast()
    state = initial_state(context)
    expected = []
    for epoch in (1, 2):
        state, loss = trainer.reconstruct(state, SAMPLES, epoch_order(context, "recon", epoch)[None], **step)
        expected.append(("recon", epoch, loss[0]))
    codes = trainer.encode(state.parameters, SAMPLES[select_upload(context)])
    weights = weights_of(broadcast["support"])
    for epoch in (1, 2, 3):
        state, loss = trainer.align(
            state,
            SAMPLES,
            epoch_order(context, "align", epoch)[None],
            centroids=broadcast["centroids"],
            weights=weights,
            **step,
        )
        expected.append(("align", epoch, loss[0]))

    assert [(phase, epoch, loss) for phase, epoch, _, loss in seen] == expected
    assert upload.keys() == {"latents"}
    assert upload["latents"].dtype == np.float32 and np.array_equal(upload["latents"], codes)
    assert upload["latents"].shape == (65, 3)
    assert np.array_equal(ours.parameters, state.parameters)
    assert seen[-1][2] is ours and ours.epochs == 5


def test_uniform_weighting_reaches_the_loss():
    inverse, _ = a_round(a_context())
    uniform, _ = a_round(a_context(weighting="uniform"))
    flat = {"centroids": a_broadcast()["centroids"], "support": np.full(4, 9, np.float32)}
    equal, _ = a_round(a_context(), broadcast=flat)
    assert not np.array_equal(inverse.parameters, uniform.parameters)
    np.testing.assert_allclose(equal.parameters, uniform.parameters, atol=1e-5)


def test_a_round_is_a_pure_function():
    context = a_context()
    samples, broadcast = SAMPLES.copy(), a_broadcast()
    start = METHOD.initial(context)
    kept = start.parameters.copy()
    (one, up_one), (two, up_two) = (a_round(context, start, broadcast) for _ in range(2))
    assert one.parameters.tobytes() == two.parameters.tobytes()
    assert up_one["latents"].tobytes() == up_two["latents"].tobytes()
    assert np.array_equal(SAMPLES, samples) and np.array_equal(start.parameters, kept)
    assert all(np.array_equal(broadcast[name], a_broadcast()[name]) for name in broadcast)


def test_shared_and_independent_initial_models():
    def start(**changes):
        return METHOD.initial(a_context(**changes)).parameters

    assert np.array_equal(start(device="a"), start(device="b", round=9))
    assert not np.array_equal(start(seed=1), start(seed=2))
    assert not np.array_equal(start(init="independent", device="a"), start(init="independent", device="b"))
    assert np.array_equal(start(init="independent", device="a"), start(init="independent", device="a", round=9))


def test_orders_are_permutations_that_differ_by_phase_epoch_round_and_device():
    context = a_context()
    keys = [(context, "recon", 1), (context, "recon", 2), (context, "align", 1)]
    keys += [(replace(context, round=5), "recon", 1), (replace(context, device="d008"), "recon", 1)]
    orders = [epoch_order(*key) for key in keys]
    assert all(sorted(order) == list(range(130)) for order in orders)
    assert len({order.tobytes() for order in orders}) == len(orders)


def test_the_optimizer_is_kept_or_reset_with_each_phase():
    """130 records are 3 steps an epoch: 2 + 3 epochs move the encoder, 2 the decoder; two rounds."""
    for optimizer, encoder, decoder in [("kept", 2 * 15, 2 * 6), ("reset", 9, 0)]:
        context = a_context(optimizer=optimizer)
        state, _ = a_round(context)
        state, _ = a_round(replace(context, round=5), state)
        assert (state.encoder_steps, state.decoder_steps, state.epochs) == (encoder, decoder, 10)


def test_the_learning_rate_falls_by_steps_of_local_epochs():
    hyper = Hyperparameters(learning_rate=0.5, lr_step_epochs=3, lr_decay=0.1)
    state = replace(ModelState.fresh(np.zeros(1)), epochs=1)
    assert learning_rates(state, hyper, 7) == pytest.approx([0.5] * 2 + [0.05] * 3 + [0.005] * 2)


@pytest.mark.parametrize("entries", [2**22, 260])
def test_whole_phases_end_in_the_same_bits_and_are_observed_once(monkeypatch, entries):
    """Also when the orders of a phase are drawn two epochs at a time."""
    monkeypatch.setattr(context_module, "ORDER_ENTRIES", entries)
    seen = []
    context = a_context(observe=lambda *event: seen.append(event), lr_step_epochs=2)
    each, _ = a_round(context)
    of_each, seen = {(phase, epoch): loss for phase, epoch, _, loss in seen}, []
    whole, _ = a_round(replace(context, each_epoch=False, observe=lambda *event: seen.append(event)))
    assert each.parameters.tobytes() == whole.parameters.tobytes()
    assert each.second_moment.tobytes() == whole.second_moment.tobytes()
    assert [(phase, epoch, loss) for phase, epoch, _, loss in seen] == [
        ("recon", 2, of_each["recon", 2]),
        ("align", 3, of_each["align", 3]),
    ]
    assert seen[-1][2] is whole


def test_the_falling_rate_reaches_the_trainer_across_phases():
    """With a step of 2 epochs and an all but vanishing decay, alignment after 2 epochs moves next to nothing."""
    context = a_context(lr_step_epochs=2, lr_decay=1e-9)
    state, _ = METHOD.before_upload(METHOD.initial(context), context)
    after = METHOD.after_broadcast(state, context, a_broadcast())
    assert np.abs(state.parameters - METHOD.initial(context).parameters).max() > 1e-3
    assert np.abs(after.parameters - state.parameters).max() < 1e-7


def test_the_proximal_term_holds_the_model_near_its_anchor():
    context = a_context()
    start = METHOD.initial(context)
    free = reconstruction_phase(start, context, epochs=5)
    held = reconstruction_phase(start, context, epochs=5, proximal=(10.0, start.parameters))
    distance = [np.linalg.norm(state.parameters - start.parameters) for state in (free, held)]
    assert distance[1] < 0.5 * distance[0]


def test_codes_that_are_not_finite_never_leave_the_device():
    context = a_context(recon_epochs=0, samples=np.full((4, 5), 3e38, np.float32))
    state = ModelState.fresh(np.full(context.trainer.parameter_count, 10, np.float32))
    with pytest.raises(GcaError, match="d007"):
        METHOD.before_upload(state, context)


def test_the_context_is_immutable():
    context = a_context()
    with pytest.raises(AttributeError):
        context.round = 5
    with pytest.raises(AttributeError):
        context.hyper.gamma = 2.0
    assert msgspec.structs.asdict(context.hyper)["gamma"] == 1.0


def test_the_device_half_imports_nothing_heavy():
    program = (
        "import sys, edge_client.methods.gca; "
        "print(sorted({'torch', 'sklearn', 'scipy', 'typer', 'rich'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == "[]"
