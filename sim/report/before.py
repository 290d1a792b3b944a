"""Models before the last alignment, which a study does not keep: devices do their work once more, as far as that is
cheap.

A replay counts only if it goes on to end in the very model that the study kept.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import GcaError
from sim.attack.replay import broadcasts, replay, took_part
from sim.attack.victim import Victim, load_victim

BUDGET = 1e11
"""Floating-point operations for one study: ten seconds on a laptop."""


def before_last_alignment(directory: Path, devices: int) -> dict[str, NDArray[np.float32]]:
    """Return the parameters by device, of as many devices as the budget allows, by number; none where a study cannot
    be replayed."""
    found: dict[str, NDArray[np.float32]] = {}
    left = BUDGET
    for number in range(1, devices + 1):
        try:
            victim = load_victim(directory, number)
            left -= _cost(victim)
            if left < 0:
                break
            parameters = _before(directory, victim)
        except GcaError:
            continue  # this one missed a round, or its model is gone
        if parameters is not None:
            found[victim.device] = parameters
    return found


def _before(directory: Path, victim: Victim) -> NDArray[np.float32] | None:
    if not took_part(directory, victim):
        return None
    rounds, sent = victim.study.rounds, broadcasts(directory)
    half, context = victim.half, victim.context(rounds)
    before, _ = half.before_upload(replay(victim, sent, rounds - 1), context)
    after = half.after_broadcast(before, context, sent[rounds - 1])
    return before.parameters if np.array_equal(after.parameters, victim.state.parameters) else None


def _cost(victim: Victim) -> float:
    """Return the operations of a device's whole training."""
    trainer, epochs = victim.context(0).trainer, victim.half.epochs(victim.study.training)
    each = epochs.recon * trainer.flops + epochs.align * trainer.encoder_flops
    return victim.study.rounds * each * len(victim.samples)
