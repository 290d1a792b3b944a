"""How fast this machine trains a model: what a virtual device without a board of its own is charged, and an entry for
a file of boards."""

import os
import platform
import statistics
import time
from functools import cache

import numpy as np

from edge_client.data.records import Records
from edge_client.hyperparameters import Hyperparameters
from edge_client.model.choice import trainer_for
from edge_client.seeds import stream

LONG_ENOUGH_S = 0.1


def measured_speed(hyper: Hyperparameters, records: Records) -> float:
    """Return the FLOP/s of reconstruction epochs on one thread, over a tenth of a second at least."""
    trainer = trainer_for(hyper, records.samples.shape[1])
    state = trainer.initial(stream(0, "calibration"))
    order = np.arange(len(records.samples))[None, :]
    rate, spent, epochs = np.array([hyper.learning_rate]), 0.0, -1  # the first one warms up
    while spent < LONG_ENOUGH_S:
        begun = time.thread_time()
        state, _ = trainer.reconstruct(state, records.samples, order, batch_size=hyper.batch_size, learning_rates=rate)
        epochs += 1
        spent += time.thread_time() - begun if epochs else 0.0
    return epochs * trainer.flops * len(records.samples) / spent


RECORDS, WIDTH, TIMES = 512, 30, 5


@cache
def speed_here(hyper: Hyperparameters, width: int) -> float:
    """Return the FLOP/s of this machine, on one thread, for a model of records of this width, drawn at random."""
    samples = stream(0, "calibration records").standard_normal((RECORDS, width)).astype(np.float32)
    return measured_speed(hyper, Records(samples, None, None))


def board_entry(name: str) -> str:
    """Return an entry of a file of boards (`sim.config.hardware`) with what was measured of this machine just now.

    The paper's autoencoder on records drawn at random, one thread; the median of several measurements.
    """
    hyper = Hyperparameters()
    samples = stream(0, "calibration records").standard_normal((RECORDS, WIDTH)).astype(np.float32)
    speed = statistics.median(measured_speed(hyper, Records(samples, None, None)) for _ in range(TIMES))
    layers = "-".join(map(str, (WIDTH, *hyper.hidden, hyper.latent_dim)))
    measured = f"an autoencoder {layers} trained in batches of {hyper.batch_size} on one thread, median of {TIMES}"
    return "\n".join([
        f"[boards.{name}]",
        f'note = "measured on {platform.system()} {platform.machine()} with gca hardware calibrate"',
        f'cores = {{ value = {os.cpu_count() or 1}, tag = "derived", note = "as the system counts them" }}',
        f'training_flops = {{ value = {speed:.3g}, tag = "derived", note = "{measured}" }}',
    ])  # fmt: skip
