"""Local training of many devices: microseconds per device and minibatch step, beside eager PyTorch per client.

    python -m benchmarks.training [--quick] [--devices 10 50 200 1000] [--features 14]

C devices, each with its own records, autoencoder d_x-256-64-16-64-256-d_x and Adam, minibatch 50. "eager" is what
examples of federated learning run: an nn.Module and a torch.optim.Adam per client, one client after another, in one
thread. The others run this project's trainers, one call for the five epochs of a local phase; "two threads" shares
the devices between two threads, those that a fleet trains in. Blocks of fifty devices go through all variants in turn,
so that what the machine does meanwhile falls on all of them; medians are over the blocks. Time in which a thread was
ready while another program had its core is taken off (Linux tells; "busy" says how much it was), waiting for the
interpreter lock is not. Trust ratios, not microseconds.

GFLOP/s are those of a reconstruction step; "sgemm" is the faster of what numpy and torch reach here on one thread for
a 1000 x 1000 product.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"  # before numpy and torch load their BLAS

import numpy as np  # noqa: E402
import torch  # noqa: E402

from edge_client.kernel import library  # noqa: E402
from edge_client.model.autoencoder import Architecture  # noqa: E402
from edge_client.model.compiled import CompiledTrainer  # noqa: E402
from edge_client.model.trainer import ModelState, NumpyTrainer, Trainer  # noqa: E402
from sim.fleet.compute import training_threads  # noqa: E402

BATCH, RATE, RECORDS, CLUSTERS, EPOCHS = 50, 1e-3, 564, 10, 5
BLOCK = 50
PHASES = ("reconstruction", "alignment")
Seconds = dict[tuple[str, str], list[float]]
"""By variant and phase: seconds per device and step, one entry per block."""


@dataclass
class Device:
    """One device in both worlds; `state` moves on with whichever of our trainers ran last."""

    samples: np.ndarray
    state: ModelState
    eager: "Eager"


class Eager:
    """A client as a PyTorch user writes it, without a DataLoader (which is slower)."""

    def __init__(self, arch: Architecture, samples: np.ndarray, centroids: np.ndarray, weights: np.ndarray) -> None:
        layers: list[torch.nn.Module] = []
        for layer, (inputs, outputs) in enumerate(pairwise(arch.widths)):
            layers.append(torch.nn.Linear(inputs, outputs))
            if layer not in arch.linear_layers:
                layers.append(torch.nn.ReLU())
        cut = 2 * arch.latent_layer + 1
        self.encoder, self.decoder = torch.nn.Sequential(*layers[:cut]), torch.nn.Sequential(*layers[cut:])
        self.adam = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], lr=RATE)
        self.samples, self.mu, self.w = (torch.from_numpy(a) for a in (samples, centroids, weights))

    def epoch(self, phase: str, order: np.ndarray) -> None:
        loss = self._reconstruction if phase == "reconstruction" else self._alignment
        for chosen in torch.from_numpy(order).split(BATCH):
            self.adam.zero_grad(set_to_none=True)
            loss(self.samples[chosen]).backward()
            self.adam.step()

    def _reconstruction(self, x: torch.Tensor) -> torch.Tensor:
        return (self.decoder(self.encoder(x)) - x).square().sum(dim=1).mean()

    def _alignment(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x)
        nearest = torch.cdist(z.detach(), self.mu).argmin(dim=1)
        return (self.w[nearest] * (z - self.mu[nearest]).square().sum(dim=1)).mean()


@dataclass(frozen=True)
class Workload:
    """What all devices share."""

    arch: Architecture
    centroids: np.ndarray
    weights: np.ndarray
    orders: np.ndarray

    def ours(self, trainer: Trainer, phase: str, device: Device) -> None:
        step = {"batch_size": BATCH, "learning_rates": np.full(EPOCHS, RATE)}
        if phase == "reconstruction":
            device.state, _ = trainer.reconstruct(device.state, device.samples, self.orders, **step)
        else:
            to = {"centroids": self.centroids, "weights": self.weights}
            device.state, _ = trainer.align(device.state, device.samples, self.orders, **to, **step)

    def eager(self, phase: str, device: Device) -> None:
        device.eager.epoch(phase, self.orders[0])


def fleet(work: Workload, count: int, rng: np.random.Generator) -> list[Device]:
    trainer, devices = NumpyTrainer(work.arch), []
    for _ in range(count):
        samples = rng.standard_normal((RECORDS, work.arch.input_dim)).astype(np.float32)
        eager = Eager(work.arch, samples, work.centroids, work.weights)
        devices.append(Device(samples, trainer.initial(rng), eager))
    return devices


def variants(work: Workload) -> Iterator[tuple[str, int, int, Callable[[str, Device], None]]]:
    """Yield name, threads, epochs per call, and what runs a phase of a device."""
    yield "eager", 1, 1, work.eager
    yield "numpy", 1, EPOCHS, partial(work.ours, NumpyTrainer(work.arch))
    for path in library.paths()[:2]:
        yield path, 1, EPOCHS, partial(work.ours, CompiledTrainer(work.arch, path))
    best = CompiledTrainer(work.arch, library.paths()[0])
    yield f"{best.path}, two threads", 2, EPOCHS, partial(work.ours, best)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Run some work; return its seconds without and with those in which this thread was ready but had no core."""
    start, before = time.perf_counter(), _waited()
    work()
    waited, spent = _waited() - before, time.perf_counter() - start  # in this order: no wait is outside of `spent`
    return spent - waited, spent


def _waited() -> float:
    """Return the seconds that this thread has been ready to run without a core; 0 where the system does not tell."""
    told = Path("/proc/thread-self/schedstat")
    return 1e-9 * int(told.read_text().split()[1]) if told.exists() else 0.0


def measure(work: Workload, devices: Sequence[Device], rounds: int) -> tuple[Seconds, float]:
    """Send every block of devices through every variant and phase, `rounds` times, after a warm-up.

    Returns the seconds, and the share of the time that went to waiting for a core.
    """
    found: Seconds = {}
    total = lost = 0.0
    steps = -(-RECORDS // BATCH)
    blocks = [list(devices[start : start + BLOCK]) for start in range(0, len(devices), BLOCK)]
    with training_threads(2) as pool:
        for counts, block in [(False, blocks[0]), *((True, block) for _ in range(rounds) for block in blocks)]:
            for phase in PHASES:
                for name, threads, epochs, run in variants(work):
                    jobs = [partial(run, phase, device) for device in block]
                    start = time.perf_counter()
                    times = list(map(timed, jobs) if threads == 1 else pool.map(timed, jobs))
                    spent, waiting = time.perf_counter() - start, sum(all_in - own for own, all_in in times) / threads
                    if counts:
                        seconds = (spent - waiting) / (len(block) * epochs * steps)
                        found.setdefault((name, phase), []).append(seconds)
                        total, lost = total + spent, lost + waiting
    return found, lost / total


def report(count: int, found: Seconds, busy: float, work: Workload, sgemm: float) -> None:
    weights = [inputs * outputs for inputs, outputs in pairwise(work.arch.widths)]
    flops = BATCH * (6 * sum(weights) - 2 * weights[0])  # the first layer passes nothing on downwards
    micros = {key: 1e6 * float(np.median(seconds)) for key, seconds in found.items()}
    print(
        f"\nC = {count}, busy {busy:.0%}   reconstruction   alignment   times eager: recon  align   GFLOP/s  of sgemm"
    )
    for name in dict.fromkeys(name for name, _ in found):
        recon, align = (micros[name, phase] for phase in PHASES)
        ratios = [micros["eager", phase] / micros[name, phase] for phase in PHASES]
        rate = flops / recon / 1e3
        print(
            f"{name:>20} {recon:9.1f} us {align:10.1f} us {ratios[0]:20.2f} {ratios[1]:6.2f} "
            f"{rate:9.0f} {rate / sgemm:8.0%}"
        )


def sgemm_gflops() -> float:
    """Return the rate of a 1000 x 1000 product, the better of numpy's and torch's."""
    a = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    t = torch.from_numpy(a)
    best = min(timed(product)[0] for _ in range(20) for product in (lambda: a @ a, lambda: t @ t))
    return 2.0 / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 50, 200, 1000], metavar="C")
    parser.add_argument("--features", type=int, default=14)
    parser.add_argument("--quick", action="store_true", help="10 and 50 devices: half a minute")
    options = parser.parse_args()
    if not library.paths():
        parser.error(f"the kernel is {library.load()}")

    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    work = Workload(
        Architecture(options.features),
        rng.standard_normal((CLUSTERS, 16)).astype(np.float32),
        rng.uniform(0.5, 2.0, CLUSTERS).astype(np.float32),
        np.stack([rng.permutation(RECORDS) for _ in range(EPOCHS)]),
    )
    sgemm = sgemm_gflops()
    print(f"d_x = {options.features}, N = {RECORDS}, batch {BATCH}, K = {CLUSTERS}; sgemm {sgemm:.0f} GFLOP/s")
    for count in [10, 50] if options.quick else options.devices:
        rounds = max(1, (50 if options.quick else 200) // count)
        report(count, *measure(work, fleet(work, count, rng), rounds), work, sgemm)


if __name__ == "__main__":
    main()
