"""One round of GCA on Fashion-MNIST, 20 devices: this project's trainer beside eager PyTorch, one client at a time.

    python -m benchmarks.convolutional [--devices 20] [--epochs 5]

Eager PyTorch is nn.Module, autograd and torch.optim.Adam per client, as simulators run them. Both compute the local
phases of each device (reconstruction, then alignment to ten centroids) and must end in the same parameters, bit by
bit. Each variant lives in a process of its own, since the allocator's setting holds for a whole process; they take
turns, a few devices at a time, so that what else the machine does falls on all. Trust the ratios.

Variants: eager on one thread and on two of torch's threads; ours on one thread, and on two, each training a device.
"""

import argparse
import hashlib
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import numpy as np
import torch

from edge_client.model.convolutional import ConvolutionalArchitecture, initial_parameters
from edge_client.seeds import stream
from sim.config.study import load_study
from sim.data import load, shares

ARCHITECTURE = ConvolutionalArchitecture((1, 28, 28), (128, 128), 784)
BATCH, RATE, CENTROIDS, SEED = 50, 1e-3, 10, 100
TURN = 2
"""Devices per turn, so that two threads have one each."""
VARIANTS = {"eager, 1 thread": ("eager", 1), "eager, 2 torch threads": ("eager", 2),
            "ours, 1 thread": ("ours", 1), "ours, 2 threads": ("ours", 2)}  # fmt: skip


class Device:
    """What one device trains on: its records, the epochs' orders, the centroids and the common initial model."""

    def __init__(self, number: int, samples: np.ndarray, epochs: int) -> None:
        rng = stream(SEED, "benchmark", 0, str(number))
        self.samples = samples
        self.orders = np.stack([rng.permutation(len(samples)) for _ in range(2 * epochs)])
        self.centroids = stream(SEED, "benchmark").normal(0, 0.3, (CENTROIDS, 784)).astype(np.float32)
        self.initial = initial_parameters(ARCHITECTURE, stream(SEED, "init"))


def ours(device: Device) -> np.ndarray:
    """The round in this project's trainer."""
    from edge_client.model.convolutional_trainer import ConvolutionalTrainer
    from edge_client.model.trainer import ModelState

    trainer, state = ConvolutionalTrainer(ARCHITECTURE, torch.device("cpu")), ModelState.fresh(device.initial)
    recon, align = np.split(device.orders, 2)
    rates = np.full(len(recon), RATE)
    state, _ = trainer.reconstruct(state, device.samples, recon, batch_size=BATCH, learning_rates=rates)
    weights = np.ones(CENTROIDS, np.float32)
    state, _ = trainer.align(state, device.samples, align, centroids=device.centroids, weights=weights,
                             batch_size=BATCH, learning_rates=rates)  # fmt: skip
    return state.parameters


def eager(device: Device) -> np.ndarray:
    """The same round as a PyTorch user writes it."""
    from torch import nn

    encoder = nn.Sequential(
        nn.Conv2d(1, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 16, 3, 1, 1)
    )
    decoder = nn.Sequential(
        nn.ConvTranspose2d(16, 128, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(128, 128, 3, 2, 1, 1), nn.ReLU(),
        nn.ConvTranspose2d(128, 1, 3, 2, 1, 1),
    )  # fmt: skip
    net = nn.Sequential(encoder, decoder)
    nn.utils.vector_to_parameters(torch.tensor(device.initial), net.parameters())
    adam = torch.optim.Adam(net.parameters(), RATE)
    images = torch.tensor(device.samples).reshape(-1, 1, 28, 28)
    mu = torch.tensor(device.centroids)
    recon, align = np.split(device.orders, 2)
    for orders, aligning in ((recon, False), (align, True)):
        for order in torch.tensor(orders):
            for chosen in order.split(BATCH):
                batch = images[chosen]
                adam.zero_grad()
                if aligning:
                    codes = encoder(batch).flatten(1)
                    nearest = mu[(codes.detach()[:, None] - mu).square().sum(dim=2).argmin(dim=1)]
                    loss = (codes - nearest).square().sum(dim=1).mean()
                else:
                    loss = (net(batch) - batch).square().flatten(1).sum(dim=1).mean()
                loss.backward()
                adam.step()
    return nn.utils.parameters_to_vector(net.parameters()).detach().numpy()


def serve(how: str, threads: int, devices: list[Device], pipe: Connection) -> None:
    """Train the devices that the parent names; answer with the seconds it took and a hash of what was learned."""
    torch.set_num_threads(threads if how == "eager" else 1)
    train = {"ours": ours, "eager": eager}[how]
    with ThreadPoolExecutor(threads if how == "ours" else 1) as pool:
        while (turn := pipe.recv()) is not None:
            began = time.perf_counter()
            learned = list(pool.map(train, [devices[number] for number in turn]))
            seconds = time.perf_counter() - began
            pipe.send((seconds, [hashlib.sha256(parameters.tobytes()).hexdigest() for parameters in learned]))


def ask(pipe: Connection, turn: list[int]) -> tuple[float, list[str]]:
    """Let a worker train these devices; return its seconds and its hashes."""
    pipe.send(turn)
    return pipe.recv()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5, help="local epochs of each phase")
    chosen = parser.parse_args()
    study = load_study("paper/fashion_mnist")
    dataset = load(study.dataset, seed=study.seed)
    parts = shares(study, dataset)[: chosen.devices]
    devices = [Device(number, dataset.train[rows], chosen.epochs) for number, rows in enumerate(parts)]

    context, workers = multiprocessing.get_context("spawn"), {}
    for name, (how, threads) in VARIANTS.items():
        pipe, theirs = context.Pipe()
        context.Process(target=serve, args=(how, threads, devices, theirs), daemon=True).start()
        workers[name] = pipe
    for pipe in workers.values():
        ask(pipe, [0])  # imports, and torch's first step
    seconds, learned = dict.fromkeys(VARIANTS, 0.0), {name: [] for name in VARIANTS}
    for first in range(0, len(devices), TURN):
        for name, pipe in workers.items():
            took, hashes = ask(pipe, list(range(first, min(first + TURN, len(devices)))))
            seconds[name] += took
            learned[name] += hashes
    for pipe in workers.values():
        pipe.send(None)

    steps = 2 * chosen.epochs * sum(-(-len(rows) // BATCH) for rows in parts)
    base = seconds["eager, 1 thread"]
    for name, took in seconds.items():
        print(f"{name:<24} {took:7.1f} s a round  {1000 * took / steps:6.1f} ms a step  {base / took:5.2f} x")
    best = min(took for name, took in seconds.items() if VARIANTS[name][0] == "eager")
    print(f"ours on two threads against eager's better form: {best / seconds['ours, 2 threads']:.2f} x")
    same = learned["ours, 1 thread"] == learned["eager, 1 thread"] == learned["ours, 2 threads"]
    print("parameters of ours and eager on one thread:", "equal bit by bit" if same else "DIFFERENT")


if __name__ == "__main__":
    main()
