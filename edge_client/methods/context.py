"""What a method may read during one round on one device, and the choices every local phase shares."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import FloatArray
from edge_client.model.trainer import ModelState, Trainer
from edge_client.seeds import SHARED, stream

Observer = Callable[[str, int, ModelState, float], None]
"""Called after every local epoch: phase ("recon" or "align"), epoch from 1, the state after it, its mean loss."""


@dataclass(frozen=True)
class LocalContext:
    """One round on one device; immutable. `samples` (N, d_x) float32 are the device's own normal records."""

    hyper: Hyperparameters
    trainer: Trainer
    samples: FloatArray
    seed: int
    device: str
    round: int
    observe: Observer


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


def learning_rate(state: ModelState, hyper: Hyperparameters) -> float:
    """Return the rate of the next epoch: multiplied by `lr_decay` after every `lr_step_epochs` local epochs."""
    return hyper.learning_rate * hyper.lr_decay ** (state.epochs // hyper.lr_step_epochs)
