"""Seconds of the extraction attack: 100 starts, 1,000 steps, with its parts.

    python -m benchmarks.attack [--features 14] [--codes 141] [--records 565] [--starts 100] [--steps 1000]
    python -m benchmarks.attack --image 1,28,28 --codes 30 --records 300

The victim is tabular, or with --image the paper's convolutional autoencoder. One thread, patience switched off, so
that every start takes all steps: the most an attack can cost. The codes are drawn at random, which takes the surrogate
about as long as real ones.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from edge_client.hyperparameters import Hyperparameters
from sim.attack import latent_only, white_box
from sim.attack.inversion import Inversion, Search
from sim.attack.metrics import leakage
from sim.attack.networks import fresh_parameters
from sim.attack.seen import Floats, ReleasedModel, Shape, UploadedCodes
from sim.attack.starts import starting_points

LIMIT_S = 30.0
"""What 100 starts of 1,000 steps may take on a tabular victim."""


def timed(name: str, work: Callable[[], Inversion]) -> tuple[Floats, float]:
    """Run, print the seconds, and return the outputs and the seconds. Those of the processor are what it takes on a
    machine that does nothing else."""
    began, busy = time.perf_counter(), time.process_time()
    found = work()
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    steps = int(found.steps.sum())
    print(f"{name:<12} {seconds:6.2f} s, {busy:6.2f} s of the processor; {steps:,} steps of starts")
    return found.outputs, seconds


def victim_shape(image: tuple[int, int, int] | None, features: int) -> Shape:
    """Return the paper's model for records of so many features, or for images (channels, height, width)."""
    if image is None:
        return Shape(Hyperparameters(), features)
    channels, height, width = image
    latent = 16 * (height // 4) * (width // 4)
    hyper = Hyperparameters(model="convolutional", image=image, hidden=(128, 128), latent_dim=latent)
    return Shape(hyper, channels * height * width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("features", 14), ("codes", 141), ("records", 565), ("starts", 100), ("steps", 1000)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--image", type=lambda text: tuple(map(int, text.split(","))), metavar="C,H,W")
    given = parser.parse_args()
    torch.set_num_threads(1)

    rng, shape = np.random.default_rng(0), victim_shape(given.image, given.features)
    starts = starting_points(shape, seed=0, count=given.starts)
    search = Search(steps=given.steps, patience=given.steps + 2)
    model = ReleasedModel(fresh_parameters(shape, rng), shape)
    codes = UploadedCodes(rng.normal(size=(given.codes, shape.hyper.latent_dim)).astype(np.float32), shape)
    outputs, through_model = timed("white box", lambda: white_box.attack(model, starts, search))
    _, through_codes = timed("latent only", lambda: latent_only.attack(codes, starts, search, seed=0))

    records, bank = (rng.normal(size=(count, shape.input_dim)).astype(np.float32) for count in (given.records, 100))
    began = time.perf_counter()
    leakage(records, outputs, bank)
    print(f"{'metrics':<12} {time.perf_counter() - began:6.2f} s")
    if given.image is None:
        within = max(through_model, through_codes) <= LIMIT_S
        print(f"each attack {'within' if within else 'OVER'} {LIMIT_S:.0f} s")


if __name__ == "__main__":
    main()
