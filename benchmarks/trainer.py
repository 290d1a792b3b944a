"""Microseconds per minibatch step: NumpyTrainer beside eager PyTorch (nn.Module and torch.optim.Adam).

    python benchmarks/trainer.py [--features 14] [--records 564] [--rounds 60]

One thread each. Epochs of both are interleaved in one run and the median per variant is printed, so that what the
machine does meanwhile falls on both; trust the ratio rather than the microseconds.
"""

import argparse
import os
import time
from collections.abc import Callable

for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"  # before numpy and torch load their BLAS

import numpy as np  # noqa: E402
import torch  # noqa: E402

from edge_client.model.autoencoder import Architecture  # noqa: E402
from edge_client.model.trainer import NumpyTrainer  # noqa: E402

BATCH, RATE, CLUSTERS = 50, 1e-3, 10


def numpy_epochs(
    arch: Architecture, samples: np.ndarray, centroids: np.ndarray, weights: np.ndarray
) -> dict[str, Callable[[np.ndarray], None]]:
    """Return one epoch of each phase in this project's trainer; each call goes on from the last."""
    trainer = NumpyTrainer(arch)
    state = trainer.initial(np.random.default_rng(0))

    def reconstruct(order: np.ndarray) -> None:
        nonlocal state
        state, _ = trainer.reconstruct(state, samples, order[None], batch_size=BATCH, learning_rates=np.array([RATE]))

    def align(order: np.ndarray) -> None:
        nonlocal state
        state, _ = trainer.align(
            state,
            samples,
            order[None],
            centroids=centroids,
            weights=weights,
            batch_size=BATCH,
            learning_rates=np.array([RATE]),
        )

    return {"reconstruction": reconstruct, "alignment": align}


def torch_epochs(
    arch: Architecture, samples: np.ndarray, centroids: np.ndarray, weights: np.ndarray
) -> dict[str, Callable[[np.ndarray], None]]:
    """Return the same epochs as a PyTorch user writes them, without a DataLoader (which is slower)."""
    layers: list[torch.nn.Module] = []
    for layer, (inputs, outputs) in enumerate(zip(arch.widths, arch.widths[1:], strict=False)):
        layers.append(torch.nn.Linear(inputs, outputs))
        if layer not in arch.linear_layers:
            layers.append(torch.nn.ReLU())
    cut = 2 * arch.latent_layer + 1
    encoder, decoder = torch.nn.Sequential(*layers[:cut]), torch.nn.Sequential(*layers[cut:])
    adam = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=RATE)
    X, mu, w = (torch.from_numpy(a) for a in (samples, centroids, weights))

    def epoch(order: np.ndarray, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        total = torch.zeros(())
        for chosen in torch.from_numpy(order).split(BATCH):
            adam.zero_grad(set_to_none=True)
            value = loss(X[chosen])
            value.backward()
            adam.step()
            total += value.detach() * len(chosen)
        total.item()

    def reconstruction_loss(x: torch.Tensor) -> torch.Tensor:
        return (decoder(encoder(x)) - x).square().sum(dim=1).mean()

    def alignment_loss(x: torch.Tensor) -> torch.Tensor:
        z = encoder(x)
        nearest = torch.cdist(z.detach(), mu).argmin(dim=1)
        return (w[nearest] * (z - mu[nearest]).square().sum(dim=1)).mean()

    return {
        "reconstruction": lambda order: epoch(order, reconstruction_loss),
        "alignment": lambda order: epoch(order, alignment_loss),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=14)
    parser.add_argument("--records", type=int, default=564)
    parser.add_argument("--rounds", type=int, default=60, help="epochs of each phase and variant that are timed")
    options = parser.parse_args()

    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    samples = rng.standard_normal((options.records, options.features)).astype(np.float32)
    centroids = rng.standard_normal((CLUSTERS, 16)).astype(np.float32)
    weights = rng.uniform(0.5, 2.0, CLUSTERS).astype(np.float32)
    problem = (Architecture(options.features), samples, centroids, weights)
    variants = {"numpy": numpy_epochs(*problem), "torch": torch_epochs(*problem)}
    steps = -(-options.records // BATCH)

    seconds: dict[tuple[str, str], list[float]] = {}
    for timed in range(-3, options.rounds):  # three rounds to warm up
        order = rng.permutation(options.records)
        for phase in ("reconstruction", "alignment"):
            for variant, epochs in variants.items():
                start = time.perf_counter()
                epochs[phase](order)
                if timed >= 0:
                    seconds.setdefault((variant, phase), []).append(time.perf_counter() - start)

    print(f"d_x = {options.features}, N = {options.records}, batch {BATCH}, K = {CLUSTERS}, one thread")
    for phase in ("reconstruction", "alignment"):
        ours, theirs = (1e6 * float(np.median(seconds[variant, phase])) / steps for variant in ("numpy", "torch"))
        print(f"{phase:>15}: numpy {ours:6.0f} us/step   torch eager {theirs:6.0f} us/step   ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
