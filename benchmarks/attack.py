"""Seconds of the extraction attack on a tabular victim: 100 starts, 1,000 steps, with its parts.

    python -m benchmarks.attack [--features 14] [--codes 141] [--starts 100] [--steps 1000]

One thread, patience switched off, so that every start takes all steps: the most an attack can cost. The codes are
drawn at random, which takes the surrogate about as long as real ones.
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


def timed(name: str, work: Callable[[], Inversion]) -> Floats:
    """Run, print the seconds, and return the outputs."""
    began = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - began
    verdict = "within" if seconds <= LIMIT_S else "OVER"
    print(f"{name:<12} {seconds:6.2f} s, {verdict} {LIMIT_S:.0f} s; {int(found.steps.sum()):,} steps of starts")
    return found.outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("features", 14), ("codes", 141), ("records", 565), ("starts", 100), ("steps", 1000)):
        parser.add_argument(f"--{option}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)

    rng, shape = np.random.default_rng(0), Shape(Hyperparameters(), given.features)
    starts = starting_points(shape, seed=0, count=given.starts)
    search = Search(steps=given.steps, patience=given.steps + 2)
    model = ReleasedModel(fresh_parameters(shape, rng), shape)
    codes = UploadedCodes(rng.normal(size=(given.codes, shape.hyper.latent_dim)).astype(np.float32), shape)
    outputs = timed("white box", lambda: white_box.attack(model, starts, search))
    timed("latent only", lambda: latent_only.attack(codes, starts, search, seed=0))

    records, bank = (rng.normal(size=(count, given.features)).astype(np.float32) for count in (given.records, 100))
    began = time.perf_counter()
    leakage(records, outputs, bank)
    print(f"{'metrics':<12} {time.perf_counter() - began:6.2f} s")


if __name__ == "__main__":
    main()
