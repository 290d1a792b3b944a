"""What a method may read during one round on one device, and the choices every local phase shares."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import FloatArray
from edge_client.model.trainer import ModelState, Trainer
from edge_client.protocol.messages import Phase
from edge_client.seeds import SHARED, stream

Observer = Callable[[Phase, int, ModelState, float], None]
"""Called after a local epoch: phase, epoch from 1, the state after it, its mean loss; and where a model was taken
over, as phase "global", whose loss is NaN."""

Train = Callable[[ModelState, NDArray[np.int64], NDArray[np.float64]], tuple[ModelState, NDArray[np.float64]]]
"""Runs epochs: the state, their orders (E, N) and learning rates (E,) to the new state and their losses (E,)."""

ORDER_ENTRIES = 2**22
"""Record indices drawn ahead of a trainer's call: 32 MB, whatever the number of epochs."""


@dataclass(frozen=True)
class LocalContext:
    """One round on one device; immutable. `samples` (N, d_x) float32 are the device's own normal records.

    `observe` hears of every epoch, or with `each_epoch` off of a phase's last one only: the trainer then runs the
    phase in one call. The states are the same bits either way.
    """

    hyper: Hyperparameters
    trainer: Trainer
    samples: FloatArray
    seed: int
    device: str
    round: int
    observe: Observer
    each_epoch: bool = True


def initial_state(context: LocalContext) -> ModelState:
    """Return the untrained model: the same on every device, or one of its own, as `init` says."""
    owner = SHARED if context.hyper.init == "shared" else context.device
    return context.trainer.initial(stream(context.seed, "init", 0, owner))


def at_phase_start(state: ModelState, context: LocalContext) -> ModelState:
    """Return the state a local phase starts from: Adam as it was left, or anew, as `optimizer` says."""
    return state if context.hyper.optimizer == "kept" else state.with_fresh_optimizer()


def epoch_order(context: LocalContext, phase: str, epoch: int) -> NDArray[np.int64]:
    """Return the fresh permutation of the device's records for one epoch of this round, shape (N,)."""
    rng = stream(context.seed, f"order/{phase}/{epoch}", context.round, context.device)
    return rng.permutation(len(context.samples))


def learning_rates(state: ModelState, hyper: Hyperparameters, epochs: int) -> NDArray[np.float64]:
    """Return the rates of the next epochs, shape (E,): times `lr_decay` after every `lr_step_epochs` local epochs."""
    done = np.arange(state.epochs, state.epochs + epochs)
    return np.asarray(hyper.learning_rate * hyper.lr_decay ** (done // hyper.lr_step_epochs), np.float64)


def run_epochs(state: ModelState, context: LocalContext, phase: Phase, epochs: int, train: Train) -> ModelState:
    """Run epochs 1 to `epochs` of a local phase and let the context observe them; return the state after the last."""
    state = at_phase_start(state, context)
    span = 1 if context.each_epoch else max(1, ORDER_ENTRIES // len(context.samples))
    for first in range(1, epochs + 1, span):
        last = min(first + span - 1, epochs)
        orders = np.stack([epoch_order(context, phase, epoch) for epoch in range(first, last + 1)])
        state, losses = train(state, orders, learning_rates(state, context.hyper, len(orders)))
        if context.each_epoch or last == epochs:
            context.observe(phase, last, state, float(losses[-1]))
    return state
