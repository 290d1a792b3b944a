"""Run one device of a finished study again, from the broadcasts it heard.

A study keeps each device's records and final parameters, and every broadcast; it keeps neither Adam's moments nor the
codes of past rounds. All randomness is keyed, so both come back by doing the device's work once more. The check: the
replay must end in the very parameters that the study kept. It cannot where the device missed a round, or where the
study ran on another machine with another arithmetic; then the moments are taken as zero, as if the device had
restarted, and the report says so.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_server.study.checkpoint import load_checkpoint
from broker_server.study.results import last_run
from broker_server.study.store import StudyStore
from edge_client.errors import ConfigError
from edge_client.model.trainer import ModelState
from sim.attack.victim import Victim

NOT_REPLAYED = "a replay of this device does not end in its saved model: Adam's moments are taken as zero"


def broadcasts(directory: Path) -> list[Mapping[str, NDArray[Any]]]:
    """Return what the server sent, round after round."""
    return [load_checkpoint(path)[0] for path in sorted((directory / "rounds").glob("*.safetensors"))]


def replay(victim: Victim, sent: list[Mapping[str, NDArray[Any]]], rounds: int) -> ModelState:
    """Return the device's state after its first `rounds` rounds."""
    half = victim.half  # without codecs: what is kept of a broadcast is what devices read
    state = half.initial(victim.context(0))
    for round, broadcast in enumerate(sent[:rounds], start=1):
        context = victim.context(round)
        state, _ = half.before_upload(state, context)
        state = half.after_broadcast(state, context, broadcast)
    return state


def took_part(directory: Path, victim: Victim) -> bool:
    """Say whether every upload of the device was accepted, and all broadcasts are there to be replayed."""
    rounds = victim.study.rounds
    with StudyStore.open(directory) as store:
        ((accepted,),) = store.rows(
            "SELECT count(*) FROM participants WHERE run = ? AND device = ? AND fate = 'accepted'",
            last_run(store).run, victim.device,
        )  # fmt: skip
    return bool(accepted == rounds == len(broadcasts(directory)))


def with_moments(directory: Path, victim: Victim) -> tuple[Victim, tuple[str, ...]]:
    """Return the victim with Adam as round R left it, and a remark if it could not be brought back."""
    if victim.study.training.optimizer == "reset":
        return victim, ()  # every phase starts from zero moments anyway
    if took_part(directory, victim):
        state = replay(victim, broadcasts(directory), victim.study.rounds)
        if np.array_equal(state.parameters, victim.state.parameters):
            return replace(victim, state=state), ()
    return victim, (NOT_REPLAYED,)


def before_round(directory: Path, victim: Victim, round: int) -> ModelState:
    """Return the device's state when `round`, one of the study's, opened; ConfigError if it cannot be brought back."""
    if not 1 <= round <= victim.study.rounds:
        raise ConfigError(f"--round {round}: the study has rounds 1 to {victim.study.rounds}")
    if not took_part(directory, victim):
        raise ConfigError(
            f"{victim.device} missed a round or a broadcast is gone, so that its rounds cannot be run again; "
            "choose another --victim"
        )
    return replay(victim, broadcasts(directory), round - 1)
