"""Runs of any method over the broker in memory, and the same training done by hand, to compare with."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from device.in_memory import HYPER as GCA_HYPER
from device.in_memory import PLAN, SPEC, SPEED, WIDTH, Federation, records_of
from msgspec.structs import replace as with_fields

from broker_server.methods.base import Aggregate, ServerMethod, Upload
from broker_server.methods.dp_fedavg import DpFedAvgServer
from broker_server.methods.fedavg import FedAvgServer
from broker_server.methods.fednova import FedNovaServer
from broker_server.methods.fedprox import FedProxServer
from broker_server.methods.gca import GcaServer
from edge_client.device import Device
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.context import LocalContext
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import ModelState, Trainer
from edge_client.protocol.codec import Arrays

HYPER = with_fields(GCA_HYPER, local_epochs=2)
SEED = PLAN.seed
TRAINER: Trainer = trainer_for(HYPER, WIDTH)
P = TRAINER.parameter_count
METHODS = ("gca", "fedavg", "fedprox", "fednova", "dp_fedavg")
SHARING = METHODS[1:]


def server_half(name: str, hyper: Hyperparameters = HYPER, **privacy: float) -> ServerMethod:
    match name:
        case "gca":
            return GcaServer(hyper.latent_dim, hyper.upload_fraction, SPEC, SEED)
        case "fedavg":
            return FedAvgServer(hyper, SEED)
        case "fedprox":
            return FedProxServer(hyper, SEED)
        case "fednova":
            return FedNovaServer(hyper, SEED)
        case "dp_fedavg":
            return DpFedAvgServer(hyper, SEED, **privacy)
    raise AssertionError(name)


@dataclass
class Spy:
    """A server half that remembers what it was given and what it gave."""

    half: ServerMethod
    uploads: dict[int, Mapping[str, Upload]] = field(default_factory=dict)
    broadcasts: dict[int, Arrays] = field(default_factory=dict)

    @property
    def broadcasts_to_all(self) -> bool:
        return self.half.broadcasts_to_all

    def upload_limit(self, sender: Any) -> int:
        return self.half.upload_limit(sender)

    def check(self, sender: Any, upload: Arrays) -> None:
        self.half.check(sender, upload)

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None) -> Aggregate:
        result = self.half.aggregate(round, uploads, previous)
        self.uploads[round], self.broadcasts[round] = uploads, result.broadcast
        return result


class Run(Federation):
    """A federation with a method and shards of chosen sizes (40 records where none is given)."""

    def __init__(self, name: str, shards: Mapping[str, int] | str = "abcd", *, hyper: Hyperparameters = HYPER,
                 privacy: Mapping[str, float] | None = None, **plan: Any) -> None:  # fmt: skip
        self.shards = dict.fromkeys(shards, 40) if isinstance(shards, str) else dict(shards)
        count = len(self.shards)
        # 10 s for whoever waits: on a busy machine, slowness must not look like absence.
        usual = {"method": name, "hyper": hyper, "devices": count, "minimum_devices": count, "patience_s": 10 * SPEED}
        self.spy = Spy(server_half(name, hyper, **(privacy or {})))
        super().__init__(replace(PLAN, **usual | plan), self.spy)

    def device(self, name: str, *, width: int = WIDTH, **fields: Any) -> Device:
        records = records_of(name, width)
        records = replace(records, samples=records.samples[: self.shards[name]])
        return super().device(name, width=width, records=records, **fields)

    async def states(self) -> dict[str, ModelState]:
        """Run to the end and return the devices' final states."""
        outcome, states = await self.run(self.shards)
        assert outcome.completed, (outcome, self.told.notes)
        return states


def bits(states: Mapping[str, ModelState]) -> dict[str, bytes]:
    return {name: state.parameters.tobytes() for name, state in sorted(states.items())}


def context(name: str, round: int, hyper: Hyperparameters = HYPER, samples: int = 40) -> LocalContext:
    """The context of a device of a `Run` in one of its rounds."""
    return LocalContext(hyper=hyper, trainer=TRAINER, samples=records_of(name).samples[:samples], seed=SEED,
                        device=name, round=round, observe=lambda *_: None)  # fmt: skip


def uploads(*parts: tuple[int, list[float]]) -> dict[str, Upload]:
    """Uploads of devices a, b, ... with (N_i, theta_i)."""
    return {
        chr(ord("a") + i): Upload(samples, WIDTH, {"parameters": np.array(theta, np.float32)})
        for i, (samples, theta) in enumerate(parts)
    }


async def settled(condition: Any, seconds: float = 10.0) -> None:
    """Wait until a condition on a running federation holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
