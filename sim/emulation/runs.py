"""What is to be run and how it ended, whichever way devices are run: as processes, as tasks, or without a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_server.plan import RunPlan
from broker_server.study.records import Outcome
from edge_client.transport.endpoint import Endpoint
from sim.config.study import Study
from sim.emulation.workload import Shard
from sim.fleet.recording import Recording

FAREWELL_S = 10.0
"""How long the devices of an ended run may take to write their models."""


@dataclass(frozen=True)
class Federation:
    """One run of a study in real time, written to `directory`. `broker` is a real one, None for our own. `order` is
    the order in which the devices are started. A plan that starts after some round finds the devices' states there.
    `recording` is what training is written to, or taken from where it is complete."""

    study: Study
    plan: RunPlan
    shards: tuple[Shard, ...]
    test: Path
    directory: Path
    broker: Endpoint | None = None
    order: Sequence[int] | None = None
    recording: Recording | None = None


@dataclass(frozen=True)
class Finished:
    """How a run ended, and the hash of what it learned: None when a device has written no model."""

    outcome: Outcome
    state_sha256: str | None
