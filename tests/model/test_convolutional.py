"""The convolutional trainer against torch's own modules and optimiser, bit by bit where the operations are the same."""

import csv
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_client.errors import ConfigError, EnvironmentFault, GcaError, ProtocolError
from edge_client.hyperparameters import Hyperparameters
from edge_client.model.choice import architecture_for, trainer_for
from edge_client.model.convolutional import ConvolutionalArchitecture, initial_parameters
from edge_client.model.convolutional_trainer import ConvolutionalTrainer, keep_freed_memory, nearest_centroids
from edge_client.model.trainer import ModelState

ROOT = Path(__file__).parents[2]
TABLE_11 = ROOT / "configs" / "published" / "table11_communication_inputs.csv"

PAPER = {
    "cifar10": Hyperparameters(model="convolutional", image=(3, 32, 32), hidden=(128, 128), latent_dim=1024),
    "fashion_mnist": Hyperparameters(model="convolutional", image=(1, 28, 28), hidden=(128, 128), latent_dim=784),
}
SMALL = ConvolutionalArchitecture((2, 8, 12), (8, 5), 18)
RATES = np.array([1e-2, 3e-3])


def modules(arch: ConvolutionalArchitecture, parameters: NDArray[np.float32]) -> tuple[nn.Sequential, nn.Sequential]:
    """Return (encoder, decoder) of two hidden layers as a reader of the paper would write them."""
    (c, _, _), (a, b), (d, _, _) = arch.image, arch.hidden, arch.latent_shape
    encoder = nn.Sequential(
        nn.Conv2d(c, a, 3, 2, 1), nn.ReLU(), nn.Conv2d(a, b, 3, 2, 1), nn.ReLU(), nn.Conv2d(b, d, 3, 1, 1)
    )
    decoder = nn.Sequential(
        nn.ConvTranspose2d(d, b, 3, 1, 1), nn.ReLU(),
        nn.ConvTranspose2d(b, a, 3, 2, 1, 1), nn.ReLU(),
        nn.ConvTranspose2d(a, c, 3, 2, 1, 1),
    )  # fmt: skip
    nn.utils.vector_to_parameters(torch.tensor(parameters), chain(encoder.parameters(), decoder.parameters()))
    return encoder, decoder


def flat(*parts: nn.Module) -> NDArray[np.float32]:
    vector: NDArray[np.float32] = (
        nn.utils.parameters_to_vector(chain(*(part.parameters() for part in parts))).detach().numpy()
    )
    return vector


def records(arch: ConvolutionalArchitecture, n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return n images as rows, and the orders of two epochs."""
    rng = np.random.default_rng(n)
    samples = rng.uniform(-1, 1, (n, arch.input_dim)).astype(np.float32)
    return samples, np.stack([rng.permutation(n), rng.permutation(n)])


@pytest.mark.parametrize("name", PAPER)
def test_parameters_and_latents_are_the_papers(name: str) -> None:
    with TABLE_11.open() as lines:
        row = next(row for row in csv.DictReader(lines) if row["dataset"] == name)
    hyper = PAPER[name]
    assert hyper.image is not None
    arch = architecture_for(hyper, int(np.prod(hyper.image)))
    trainer = trainer_for(hyper, arch.input_dim)
    assert arch.parameters == trainer.parameter_count == int(row["parameters"])
    assert arch.latent_dim == trainer.latent_dim == int(row["latent_dim"])


def test_arithmetic_by_hand() -> None:
    """2 x 8 x 12 -> 8 -> 5 -> 3 channels: areas 4 x 6, 2 x 3, 2 x 3; each kernel entry once per pixel of the smaller
    image, so that a layer of the decoder costs what its mirror image costs."""
    encoder = 9 * (2 * 8 * 24 + 8 * 5 * 6 + 5 * 3 * 6)
    assert SMALL.latent_shape == (3, 2, 3)
    assert SMALL.encoder_flops == 6 * encoder and SMALL.flops == 12 * encoder


def test_initial_parameters_are_drawn_as_torch_draws_them() -> None:
    """Bounds of torch's defaults, read off its own modules: 1/sqrt(fan) with kernels of 9 and the second axis."""
    arch = ConvolutionalArchitecture((1, 28, 28), (128, 128), 784)
    ours = modules(arch, initial_parameters(arch, np.random.default_rng(1)))
    for mine, theirs in zip(chain(*ours), chain(*modules_as_torch_made_them(arch)), strict=True):
        for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
            bound = 1 / np.sqrt(9 * mine.weight.shape[1])
            assert one.abs().max() <= bound and two.abs().max() <= bound
            if one.numel() > 1000:
                assert one.std().item() == pytest.approx(two.std().item(), rel=0.1)


def modules_as_torch_made_them(arch: ConvolutionalArchitecture) -> tuple[nn.Sequential, nn.Sequential]:
    torch.manual_seed(1)
    made = modules(arch, np.zeros(arch.parameters, np.float32))
    for module in chain(*made):
        if not isinstance(module, nn.ReLU):
            module.reset_parameters()  # type: ignore[operator]
    return made


@pytest.mark.parametrize(("arch", "n"), [(SMALL, 53), (ConvolutionalArchitecture((1, 28, 28), (128, 128), 784), 60)])
def test_reconstruction_equals_torch_bit_by_bit(arch: ConvolutionalArchitecture, n: int) -> None:
    trainer = ConvolutionalTrainer(arch, torch.device("cpu"))
    state, (samples, orders) = trainer.initial(np.random.default_rng(0)), records(arch, n)
    ours, losses = trainer.reconstruct(state, samples, orders, batch_size=50, learning_rates=RATES)

    encoder, decoder = modules(arch, state.parameters)
    net = nn.Sequential(encoder, decoder)
    adam, expected = torch.optim.Adam(net.parameters()), []
    for order, rate in zip(orders, RATES, strict=True):
        adam.param_groups[0]["lr"], total = rate, 0.0
        for start in range(0, n, 50):
            batch = torch.tensor(samples[order[start : start + 50]]).reshape(-1, *arch.image)
            loss = ((net(batch) - batch) ** 2).flatten(1).sum(dim=1).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item() * len(batch)
        expected.append(total / n)
    assert np.array_equal(ours.parameters, flat(encoder, decoder))
    assert losses == pytest.approx(expected, rel=1e-6)
    assert (ours.encoder_steps, ours.decoder_steps, ours.epochs) == (4, 4, 2)

    with torch.no_grad():
        images = torch.tensor(samples).reshape(-1, *arch.image)
        codes, errors = encoder(images).flatten(1), ((net(images) - images) ** 2).flatten(1).sum(dim=1)
    np.testing.assert_allclose(trainer.encode(ours.parameters, samples), codes.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(trainer.score(ours.parameters, samples), errors.numpy(), rtol=1e-5)


def test_alignment_equals_torch_bit_by_bit_and_leaves_the_decoder_alone() -> None:
    trainer = ConvolutionalTrainer(SMALL, torch.device("cpu"))
    samples, orders = records(SMALL, 53)
    state = trainer.initial(np.random.default_rng(0))
    state, _ = trainer.reconstruct(state, samples, orders[:1], batch_size=50, learning_rates=RATES[:1])
    rng = np.random.default_rng(4)
    centroids, weights = rng.normal(size=(7, 18)).astype(np.float32), rng.uniform(0.5, 2, 7).astype(np.float32)
    settings = {"centroids": centroids, "weights": weights, "batch_size": 50, "learning_rates": RATES}
    kept, _ = trainer.align(state, samples, orders, **settings)
    ours, losses = trainer.align(state.with_fresh_optimizer(), samples, orders, **settings)

    encoder, _ = modules(SMALL, state.parameters)
    adam, mu, w, expected = torch.optim.Adam(encoder.parameters()), torch.tensor(centroids), torch.tensor(weights), []
    for order, rate in zip(orders, RATES, strict=True):
        adam.param_groups[0]["lr"], total = rate, 0.0
        for start in range(0, 53, 50):
            codes: Tensor = encoder(torch.tensor(samples[order[start : start + 50]]).reshape(-1, *SMALL.image)).flatten(
                1
            )
            nearest = ((codes.detach()[:, None] - mu) ** 2).sum(dim=2).argmin(dim=1)
            loss = (w[nearest] * ((codes - mu[nearest]) ** 2).sum(dim=1)).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item() * len(codes)
        expected.append(total / 53)
    encoder_block, decoder_block = np.split(ours.parameters, [SMALL.encoder_parameters])
    assert np.array_equal(encoder_block, flat(encoder))
    assert np.array_equal(decoder_block, state.parameters[SMALL.encoder_parameters :])
    assert losses == pytest.approx(expected, rel=1e-6)

    assert (kept.encoder_steps, kept.decoder_steps, kept.epochs) == (2 + 4, 2, 3)
    for moment in ("first_moment", "second_moment"):
        before, after = getattr(state, moment), getattr(kept, moment)
        assert np.array_equal(before[SMALL.encoder_parameters :], after[SMALL.encoder_parameters :])
        assert not np.array_equal(before[: SMALL.encoder_parameters], after[: SMALL.encoder_parameters])


def test_the_proximal_term_pulls_as_autograd_says() -> None:
    trainer = ConvolutionalTrainer(SMALL, torch.device("cpu"))
    samples, orders = records(SMALL, 20)
    state, anchor = (trainer.initial(np.random.default_rng(seed)) for seed in (0, 1))
    ours, losses = trainer.reconstruct(
        state, samples, orders[:1], batch_size=50, learning_rates=RATES[:1], proximal=(0.7, anchor.parameters)
    )
    encoder, decoder = modules(SMALL, state.parameters)
    net, batch = nn.Sequential(encoder, decoder), torch.tensor(samples[orders[0]]).reshape(-1, *SMALL.image)
    adam = torch.optim.Adam(net.parameters(), lr=RATES[0])
    data = ((net(batch) - batch) ** 2).flatten(1).sum(dim=1).mean()
    pull = ((nn.utils.parameters_to_vector(net.parameters()) - torch.tensor(anchor.parameters)) ** 2).sum()
    (data + 0.7 * pull).backward()
    adam.step()
    np.testing.assert_allclose(ours.first_moment, 0.1 * gradient_of(net), rtol=1e-4, atol=1e-5)
    assert losses[0] == pytest.approx(data.item(), rel=1e-6)


def gradient_of(net: nn.Module) -> NDArray[np.float32]:
    parts = [part.grad for part in net.parameters() if part.grad is not None]
    return torch.cat([part.reshape(-1) for part in parts]).numpy()


def test_epochs_in_one_call_are_epochs_in_many_and_arguments_stay_as_they_were() -> None:
    trainer = ConvolutionalTrainer(SMALL, torch.device("cpu"))
    state, (samples, orders) = trainer.initial(np.random.default_rng(0)), records(SMALL, 53)
    before = [array.copy() for array in (state.parameters, state.first_moment, state.second_moment, samples)]
    together, losses = trainer.reconstruct(state, samples, orders, batch_size=20, learning_rates=RATES)
    apart, first = trainer.reconstruct(state, samples, orders[:1], batch_size=20, learning_rates=RATES[:1])
    apart, second = trainer.reconstruct(apart, samples, orders[1:], batch_size=20, learning_rates=RATES[1:])
    assert_same(together, apart)
    assert losses.tolist() == [*first, *second]
    now = (state.parameters, state.first_moment, state.second_moment, samples)
    assert all(np.array_equal(one, two) for one, two in zip(before, now, strict=True))


def assert_same(one: ModelState, two: ModelState) -> None:
    for name in ("parameters", "first_moment", "second_moment"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert (one.encoder_steps, one.decoder_steps, one.epochs) == (two.encoder_steps, two.decoder_steps, two.epochs)


def test_threads_and_cores_change_no_bit() -> None:
    trainer = ConvolutionalTrainer(SMALL, torch.device("cpu"))
    state, (samples, orders) = trainer.initial(np.random.default_rng(0)), records(SMALL, 53)

    def train(_: int) -> ModelState:
        return trainer.reconstruct(state, samples, orders, batch_size=50, learning_rates=RATES)[0]

    torch.set_num_threads(2)
    here = train(0)
    with ThreadPoolExecutor(2) as pool:
        for elsewhere in pool.map(train, range(4)):
            assert_same(here, elsewhere)


def test_the_allocator_changes_no_bit() -> None:
    """The setting holds for a whole process, so that each way needs one of its own."""
    code = """
import sys, hashlib, numpy as np
from edge_client.model import convolutional_trainer as module
from edge_client.model.convolutional import ConvolutionalArchitecture
if sys.argv[1] == "default":
    module.keep_freed_memory = lambda: False
trainer = module.ConvolutionalTrainer(ConvolutionalArchitecture((1, 28, 28), (32, 32), 784))
rng = np.random.default_rng(0)
samples = rng.uniform(-1, 1, (100, 784)).astype(np.float32)
orders = np.arange(100)[None]
state, _ = trainer.reconstruct(trainer.initial(rng), samples, orders, batch_size=50, learning_rates=np.full(1, 1e-3))
print(hashlib.sha256(state.parameters.tobytes()).hexdigest())
"""
    printed = {
        subprocess.run([sys.executable, "-c", code, how], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for how in ("default", "kept")
    }
    assert len(printed) == 1 and len(printed.pop().strip()) == 64


def test_glibc_takes_the_settings() -> None:
    assert keep_freed_memory()


def test_the_nearest_centroid_by_hand() -> None:
    """Far from the origin: expanding ||z||^2 - 2 z mu + ||mu||^2 in float32 would lose the difference of one."""
    codes = torch.tensor([[1e4, 1e4], [1e4 + 1, 1e4], [0.0, 0.0]])
    centroids = torch.tensor([[1e4 + 1, 1e4], [1e4, 1e4], [0.0, 2.0], [0.0, -2.0]])
    assert nearest_centroids(codes, centroids).tolist() == [1, 0, 2]


def test_what_overflows_is_infinitely_far_and_diverged_training_says_so() -> None:
    trainer = ConvolutionalTrainer(SMALL, torch.device("cpu"))
    state, (samples, orders) = trainer.initial(np.random.default_rng(0)), records(SMALL, 20)
    assert np.isinf(trainer.score(state.parameters, np.full((1, SMALL.input_dim), 3e38, np.float32))).all()
    with pytest.raises(GcaError, match="reconstruction: training diverged"):
        trainer.reconstruct(state, samples * np.float32(1e30), orders, batch_size=5, learning_rates=RATES)


def test_unusable_arguments_are_refused() -> None:
    trainer = ConvolutionalTrainer(SMALL, torch.device("cpu"))
    state, (samples, orders) = trainer.initial(np.random.default_rng(0)), records(SMALL, 20)
    with pytest.raises(ConfigError, match="samples"):
        trainer.encode(state.parameters, samples[:, :-1])
    with pytest.raises(ConfigError, match="another architecture"):
        trainer.score(state.parameters[:-1], samples)
    with pytest.raises(ConfigError, match="orders"):
        trainer.reconstruct(state, samples, orders + 1, batch_size=5, learning_rates=RATES)
    with pytest.raises(ProtocolError, match="centroids"):
        trainer.align(state, samples, orders, centroids=np.zeros((3, 17), np.float32),
                      weights=np.ones(3), batch_size=5, learning_rates=RATES)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "width", "complaint"),
    [
        ({"image": None}, 784, r"training\.image: is missing"),
        ({"image": (1, 28, 28)}, 3072, r"makes 784 features, records have 3,072"),
        ({"hidden": (8, 8, 8)}, 784, "28 x 28 cannot be halved 3 times"),
        ({"latent_dim": 16}, 784, "no whole number of 7 x 7 channels; use a multiple of 49, such as 784"),
    ],
)
def test_a_model_that_does_not_fit_says_why(changed: dict[str, object], width: int, complaint: str) -> None:
    settings: dict[str, object] = {"image": (1, 28, 28), "hidden": (128, 128), "latent_dim": 784} | changed
    with pytest.raises(ConfigError, match=complaint):
        architecture_for(Hyperparameters(model="convolutional", **settings), width)  # type: ignore[arg-type]


def test_without_torch_the_device_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "edge_client.model.convolutional_trainer", None)
    with pytest.raises(EnvironmentFault, match=r"needs torch .*pip install '\.\[server\]'"):
        trainer_for(PAPER["fashion_mnist"], 784)


def test_the_nearest_centroid_is_found_among_neighbours_whose_roots_are_equal() -> None:
    """Squared distances 2 + (k + 1) / 2^22 and 2 + k / 2^22 are neighbours in float32; k is such that roots are not."""
    k = next(k for k in range(9) if len({*np.sqrt(np.float32(2) + np.float32(2**-22) * np.float32([k, k + 1]))}) == 1)
    far, near = ([1.0, 1.0] + [2.0**-11] * n + [0.0] * (k + 1 - n) for n in (k + 1, k))
    assert nearest_centroids(torch.zeros(1, k + 3), torch.tensor([far, near])).tolist() == [1]
