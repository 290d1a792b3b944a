"""How fast this machine trains a model: what a virtual device without a board of its own is charged."""

import time

import numpy as np

from edge_client.hyperparameters import Hyperparameters
from edge_client.model.choice import trainer_for
from edge_client.records import Records
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
