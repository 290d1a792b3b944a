"""The compiled kernel against the numpy trainer and torch autograd, on every instruction set of this machine."""

import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model.engines import ENGINES, TorchAutoencoder, relative_error, trainer_on, vectors
from threadpoolctl import threadpool_limits

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.kernel import library
from edge_client.model import checks
from edge_client.model.autoencoder import Architecture, initial_parameters
from edge_client.model.choice import dense_engine, trainer_for
from edge_client.model.compiled import CompiledTrainer
from edge_client.model.trainer import ModelState, NumpyTrainer

BATCH, RATE, MU = 50, 1e-3, 0.05
PATHS = library.paths()
COMPILER = shutil.which(os.environ.get("CC", "cc"))

pytestmark = pytest.mark.skipif(not PATHS and COMPILER is None, reason="needs a C compiler")

# Every d_x in {1, 5, 14, 29, 64} and every N in {1, 49, 50, 51, 564, 1236}, each twice or more.
SIZES = [(1, 1), (1, 564), (5, 49), (5, 1236), (14, 50), (14, 564), (14, 1), (29, 51), (29, 1236), (64, 50), (64, 49),
         (64, 51)]  # fmt: skip


def test_the_kernel_is_built_where_there_is_a_compiler():
    assert PATHS, f"{library.load()}; run pip install -e ."
    assert PATHS[-1] == "baseline"


def a_device(arch, records, components=10, seed=0):
    """Return parameters, samples, centroids, weights and an anchor of one device."""
    rng = np.random.default_rng([arch.input_dim, records, seed])
    flat = initial_parameters(arch, rng)
    return (
        flat,
        rng.standard_normal((records, arch.input_dim)).astype(np.float32),
        (0.3 * rng.standard_normal((components, arch.latent_dim))).astype(np.float32),
        rng.uniform(0.2, 3.0, components).astype(np.float32),
        flat + (0.05 * rng.standard_normal(flat.shape)).astype(np.float32),
    )


def run(trainer, device, objective, orders, state=None, batch=BATCH):
    flat, samples, centroids, weights, anchor = device
    state = ModelState.fresh(flat) if state is None else state
    step = {"batch_size": batch, "learning_rates": np.full(len(orders), RATE)}
    if objective == "align":
        return trainer.align(state, samples, orders, centroids=centroids, weights=weights, **step)
    proximal = (MU, anchor) if objective == "proximal" else None
    return trainer.reconstruct(state, samples, orders, proximal=proximal, **step)


def orders_of(records, epochs, seed=0):
    rng = np.random.default_rng([records, seed])
    return np.stack([rng.permutation(records) for _ in range(epochs)])


@pytest.fixture
def one_thread():
    """Two BLAS threads per small product wait for each other more than they work, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)


# ---- agreement -----------------------------------------------------------------------------------------------------


def errors_after_20_and_100_steps(device, arch, objective):
    """Return {steps: {engine: the larger of its relative errors against torch and against numpy}}.

    Relative to how far the parameters have moved, which is sharper than relative to where they are.
    """
    flat, samples, centroids, weights, anchor = device
    records = len(samples)
    used = {564: 464, 1236: 986}.get(records, records)  # 10 and 20 steps an epoch, the last batch short
    steps = -(-used // BATCH)
    orders = orders_of(records, 100 // steps)[:, :used]
    reference = TorchAutoencoder(arch, flat, batch=BATCH, rate=RATE)
    tensors = [torch.from_numpy(t) for w, b in zip(*arch.layers(anchor), strict=True) for t in (w.T.copy(), b.copy())]
    states = dict.fromkeys(ENGINES, ModelState.fresh(flat))
    errors = {}
    for total, chosen in ((20, orders[: 20 // steps]), (100, orders[20 // steps :])):
        for order in chosen:
            if objective == "align":
                reference.align(samples, order, centroids, weights)
            else:
                reference.reconstruct(samples, order, (MU, tensors) if objective == "proximal" else None)
        for engine, state in states.items():
            states[engine], _ = run(trainer_on(engine, arch), device, objective, chosen, state)
        assert states[PATHS[0]].encoder_steps == total
        moved = (reference.flat() - flat, states["numpy"].parameters - flat)
        errors[total] = {e: max(relative_error(s.parameters - flat, m) for m in moved) for e, s in states.items()}
    return errors


def settled(arch, flat, samples):
    """Return the parameters with hidden biases that hold every unit open or shut on every record.

    Where a sum is within rounding of zero, a unit may open for one trainer and not for the other, and Adam turns
    that into a whole step: it happens to torch in float32 against torch in float64. Here it cannot.
    """
    flat = flat.copy()
    hidden = samples
    for layer, (weights, bias) in enumerate(zip(*arch.layers(flat), strict=True)):
        if layer not in arch.linear_layers:
            bias[:] = 1.5 * np.abs(hidden @ weights).max() * (-1) ** np.arange(len(bias))
        hidden = hidden @ weights + bias
        if layer not in arch.linear_layers:
            hidden = np.maximum(hidden, 0)
    return flat


@pytest.mark.parametrize("objective", ["recon", "proximal", "align"])
@pytest.mark.parametrize(("input_dim", "records"), SIZES[::2] + SIZES[1::3])
def test_kernel_numpy_and_autograd_agree_on_every_device_of_settled_units(input_dim, records, objective, one_thread):
    arch = Architecture(input_dim)
    flat, samples, centroids, weights, anchor = a_device(arch, records)
    flat = settled(arch, flat, samples)
    device = (flat, samples, centroids, weights, flat + (anchor - a_device(arch, records)[0]))
    errors = errors_after_20_and_100_steps(device, arch, objective)
    assert max(errors[20].values()) <= 1e-5 and max(errors[100].values()) <= 1e-4


@pytest.mark.parametrize("objective", ["recon", "proximal", "align"])
def test_kernel_numpy_and_autograd_agree_on_all_but_a_few_devices_as_they_are(objective, one_thread):
    """As drawn, some devices meet a sum within rounding of zero; a wrong formula would show on all of them."""
    found = []
    for input_dim, records in SIZES:
        arch = Architecture(input_dim)
        found.append(errors_after_20_and_100_steps(a_device(arch, records), arch, objective))
    for engine in ENGINES:
        early, late = ([errors[steps][engine] for errors in found] for steps in (20, 100))
        assert np.median(early) <= 3e-6 and sum(error > 1e-5 for error in early) <= len(SIZES) // 6, (engine, early)
        assert np.median(late) <= 1e-5 and sum(error > 1e-3 for error in late) <= len(SIZES) // 3, (engine, late)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("objective", ["recon", "proximal", "align"])
@pytest.mark.parametrize(
    ("widths", "batch", "records"),
    [
        ((3, (17, 100), 1), 7, 30),
        ((1, (1,), 1), 1, 3),
        ((100, (3,), 17), 64, 130),
        ((17, (33, 5, 2), 3), 50, 51),
        ((2, (), 1), 4, 9),
        ((31, (16, 16), 16), 1000, 40),
    ],
)
def test_any_width_and_minibatch_size(widths, batch, records, objective, path):
    arch = Architecture(*widths)
    device = a_device(arch, records)
    orders = orders_of(records, 3)
    expected, losses = run(NumpyTrainer(arch), device, objective, orders, batch=batch)
    state, ours = run(CompiledTrainer(arch, path), device, objective, orders, batch=batch)
    assert ours == pytest.approx(losses, rel=1e-4)
    for mine, theirs in zip(vectors(state), vectors(expected), strict=True):
        assert relative_error(mine, theirs) < 1e-4
    counts = [(s.encoder_steps, s.decoder_steps, s.epochs) for s in (state, expected)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, deadline=None)
@given(components=st.integers(1, 200), width=st.integers(1, 20), seed=st.integers(0, 2**32 - 1))
def test_the_nearest_centroid_is_numpys_and_ties_go_to_the_lowest(path, components, width, seed):
    """One step from an identity encoder with integer codes: distances are exact, and repeats make ties abound.

    The weight of the chosen centroid shows in the loss, so that a wrong choice among equals is seen.
    """
    rng = np.random.default_rng(seed)
    arch = Architecture(width, (), width)
    flat = np.zeros(arch.parameters, np.float32)
    arch.layers(flat).weights[0][:] = np.eye(width)
    samples = rng.integers(-3, 4, (20, width)).astype(np.float32)
    centroids = rng.integers(-2, 3, (components, width)).astype(np.float32)
    weights = (1.0 + np.arange(components)).astype(np.float32)
    distances = ((samples[:, None] - centroids) ** 2).sum(axis=2)
    expected = np.mean(weights[distances.argmin(axis=1)] * distances.min(axis=1))
    _, losses = CompiledTrainer(arch, path).align(
        ModelState.fresh(flat), samples, np.arange(20)[None], centroids=centroids, weights=weights, batch_size=20,
        learning_rates=np.array([RATE]),
    )  # fmt: skip
    assert losses[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("records", [1, 99, 100, 101, 350])
def test_codes_and_scores_equal_numpys(path, records):
    arch = Architecture(14)
    flat, samples, *_ = a_device(arch, records)
    ours, theirs = CompiledTrainer(arch, path), NumpyTrainer(arch)
    np.testing.assert_allclose(ours.encode(flat, samples), theirs.encode(flat, samples), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.score(flat, samples), theirs.score(flat, samples), rtol=1e-4)


# ---- equal bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("objective", ["recon", "align"])
def test_threads_repeats_and_single_epochs_give_equal_bits(path, objective):
    arch = Architecture(14)
    trainer = CompiledTrainer(arch, path)
    devices = [(a_device(arch, 40 + 30 * i, seed=i), orders_of(40 + 30 * i, 4, seed=i)) for i in range(6)]
    alone = [run(trainer, device, objective, orders) for device, orders in devices]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda one: run(trainer, one[0], objective, one[1]), devices))
    for (one, losses), (other, again), (device, orders) in zip(alone, together, devices, strict=True):
        assert losses.tobytes() == again.tobytes()
        assert all(a.tobytes() == b.tobytes() for a, b in zip(vectors(one), vectors(other), strict=True))
        state = None
        for epoch in range(len(orders)):
            state, loss = run(trainer, device, objective, orders[epoch : epoch + 1], state)
            assert loss[0] == losses[epoch]
        assert all(a.tobytes() == b.tobytes() for a, b in zip(vectors(one), vectors(state), strict=True))


def test_a_call_releases_the_interpreter_lock(monkeypatch):
    """The main thread finds itself running while the worker is inside the foreign call."""
    inside, call, seen = threading.Event(), library.train, 0

    def watched(*arguments):
        inside.set()
        call(*arguments)
        inside.clear()

    monkeypatch.setattr(library, "train", watched)
    arch = Architecture(14)
    work = (CompiledTrainer(arch, PATHS[0]), a_device(arch, 564), "recon", orders_of(564, 300))
    worker = threading.Thread(target=run, args=work)
    worker.start()
    while worker.is_alive():
        seen += inside.is_set()
    assert seen > 1


def test_a_call_leaves_the_threads_arithmetic_as_it_was():
    """Numbers below the normal range count as zero inside the kernel, and only there."""
    arch = Architecture(3, (4,), 2)
    run(CompiledTrainer(arch, PATHS[0]), a_device(arch, 9), "recon", orders_of(9, 1))
    assert np.float32(1e-40) * np.float32(1) > 0


# ---- limits and choice ---------------------------------------------------------------------------------------------


def test_what_the_kernel_cannot_take_is_refused_before_the_call(monkeypatch):
    arch = Architecture(3, (4,), 2)
    trainer, device = CompiledTrainer(arch, PATHS[0]), a_device(arch, 9)
    double = (device[0].astype(np.float64), device[1].astype(np.float64), *device[2:])
    with pytest.raises(ConfigError, match="float32"):
        run(trainer, double, "recon", orders_of(9, 1))
    with pytest.raises(ConfigError, match="float32"):
        trainer.score(double[0], double[1])
    with pytest.raises(ConfigError, match="no neon here"):
        CompiledTrainer(arch, "neon")
    with pytest.raises(ConfigError, match="narrower"):
        CompiledTrainer(Architecture(3, (65_536, 65_536), 2), PATHS[0])
    monkeypatch.setattr(checks, "KERNEL_ACTIVATIONS", 9)
    with pytest.raises(ConfigError, match="batch_size"):
        run(trainer, device, "recon", orders_of(9, 1))


@pytest.mark.parametrize("path", PATHS)
def test_layouts_that_are_not_contiguous_are_copied(path):
    arch = Architecture(5, (6,), 2)
    flat, samples, *rest = a_device(arch, 20)
    orders = orders_of(20, 2)
    trainer = CompiledTrainer(arch, path)
    plain, _ = run(trainer, (flat, samples, *rest), "align", orders)
    twisted = (flat, np.asfortranarray(samples), np.asfortranarray(rest[0]), *rest[1:])
    other, _ = run(trainer, twisted, "align", np.asfortranarray(orders.astype(np.int32)))
    assert plain.parameters.tobytes() == other.parameters.tobytes()


def test_the_best_path_serves_unless_the_environment_names_another(monkeypatch):
    hyper = Hyperparameters()
    monkeypatch.delenv("GCA_KERNEL", raising=False)
    assert trainer_for(hyper, 14) == CompiledTrainer(Architecture(14), PATHS[0])
    for path in PATHS:
        monkeypatch.setenv("GCA_KERNEL", path)
        assert trainer_for(hyper, 14) == CompiledTrainer(Architecture(14), path)
    monkeypatch.setenv("GCA_KERNEL", "numpy")
    assert trainer_for(hyper, 14) == NumpyTrainer(Architecture(14))
    assert "GCA_KERNEL" in str(dense_engine()) and "slow" in str(dense_engine())
    monkeypatch.setenv("GCA_KERNEL", "mmx")
    with pytest.raises(ConfigError, match="mmx"):
        trainer_for(hyper, 14)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The library is looked for in an empty folder."""
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    monkeypatch.delenv("GCA_KERNEL", raising=False)
    library.load.cache_clear()
    yield tmp_path / f"_kernel{EXTENSION_SUFFIXES[0]}"
    library.load.cache_clear()


def test_without_the_library_numpy_serves_and_says_so(elsewhere):
    assert trainer_for(Hyperparameters(), 14) == NumpyTrainer(Architecture(14))
    assert str(dense_engine()).startswith("numpy trainer") and "compiler" in str(dense_engine())


def test_a_damaged_library_is_no_library(elsewhere):
    elsewhere.write_bytes(b"\x7fELF and nothing more")
    assert "does not load" in dense_engine().why


def test_a_library_of_other_sources_is_no_library(elsewhere, tmp_path):
    """Its structures would be read at the wrong places."""
    names = ("paths", "training_bytes", "inference_bytes", "train", "infer")
    source = tmp_path / "other.c"
    source.write_text("".join(f"long long gca_{name}(void) {{ return 1; }}\n" for name in names))
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", elsewhere, source], check=True)
    assert "install the package anew" in dense_engine().why
