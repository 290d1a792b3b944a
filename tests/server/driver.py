"""Drives a coordinator by hand: devices' messages go in at times of the test's choosing, decoded answers come out."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import numpy as np

from broker_server.clustering import ClusteringSpec
from broker_server.methods.base import Aggregate as Aggregated
from broker_server.methods.gca import GcaServer
from broker_server.plan import RunPlan
from broker_server.rounds.actions import Action, Aggregate, Finish, Note, Publish, Record
from broker_server.rounds.coordinator import Coordinator
from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import Arrays, decode, encode, encode_arrays
from edge_client.protocol.messages import (
    SERVER,
    Accept,
    Chunk,
    Header,
    Join,
    Presence,
    Reject,
    RoundState,
    Telemetry,
    Welcome,
)

RUN, NAME = "hand", "hand.5f0c21aa"
SAMPLES, WIDTH, LATENT = 10, 5, 2
HYPER = Hyperparameters(hidden=(4,), latent_dim=LATENT, upload_fraction=0.3)
METHOD = GcaServer(LATENT, 0.3, ClusteringSpec("kmeans", 2), 7)
"""A device with 10 records may upload 1 to 3 codes of 2 float32: 24 payload bytes."""
CODES: Arrays = {"latents": np.arange(6, dtype=np.float32).reshape(3, 2)}
RESULT = Aggregated({"centroids": np.zeros((2, 2), np.float32), "support": np.ones(2, np.float32)})
"""What the tests broadcast: 16 + 8 payload bytes."""
A = TypeVar("A")
H = TypeVar("H", bound=Header)


def plan(**fields: Any) -> RunPlan:
    """A run of two devices and two rounds, unless told otherwise."""
    usual: dict[str, Any] = {
        "run": RUN, "incarnation": "5f0c21aa", "method": "gca", "seed": 7, "rounds": 2, "hyper": HYPER,
        "devices": 2, "minimum_devices": 2, "patience_s": 60.0, "chunk_size": 64,
    }  # fmt: skip
    return RunPlan(**usual | fields)


def told(actions: list[Action], kind: type[H]) -> list[H]:
    """The messages of one type among the actions."""
    found = []
    for action in actions:
        if isinstance(action, Publish) and action.payload and topics.parse(action.topic, RUN).kind is kind:
            found.append(decode(action.payload, kind))
    return found


def only(actions: list[Action], kind: type[A]) -> A:
    """The one action of this type."""
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


def notes(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Note)]


def state(run: str, round: int, kind: Any = "open") -> RoundState:
    """What another server announces."""
    return RoundState(run=run, round=round, device=SERVER, seq=300, state=kind)


@dataclass
class Driver:
    """A coordinator and the devices that speak to it; `log` keeps all its actions."""

    plan: RunPlan = field(default_factory=plan)
    coordinator: Coordinator = field(init=False)
    log: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.plan, METHOD)
        self._seq = count()

    @property
    def online(self) -> tuple[str, ...]:
        """The members that the coordinator takes to be online."""
        members = self.coordinator.members
        return tuple(device for device in sorted(members.joined) if members.online(device))

    def _did(self, actions: list[Action]) -> list[Action]:
        self.log += actions
        return actions

    def head(self, device: str, round: int = 0, run: str = NAME) -> dict[str, Any]:
        return {"run": run, "round": round, "device": device, "seq": next(self._seq)}

    def send(self, topic: str, message: Header | bytes, now: float) -> list[Action]:
        data = message if isinstance(message, bytes) else encode(message)
        return self._did(self.coordinator.take(topic, data, now))

    def presence(self, device: str, now: float, state: Any = "online", instance: str = "00000000") -> list[Action]:
        message = Presence(**self.head(device, run=RUN), state=state, instance=instance)
        return self.send(topics.presence(RUN, device), message, now)

    def join(self, device: str, now: float, *, round: int = 0, awaits: Any = "nothing", instance: str = "00000000",
             width: int = WIDTH, run: str = NAME, **rates: float) -> list[Action]:  # fmt: skip
        message = Join(**self.head(device, round, run), instance=instance, samples=SAMPLES, input_dim=width,
                       awaits=awaits, **rates)  # fmt: skip
        return self.send(topics.join(RUN, device), message, now)

    def arrive(self, device: str, now: float, **fields: Any) -> list[Action]:
        """Come online and join."""
        instance = fields.get("instance", "00000000")
        return [*self.presence(device, now, instance=instance), *self.join(device, now, **fields)]

    def chunks(self, device: str, round: int, upload: Arrays | bytes = CODES, size: int = 1000) -> list[Chunk]:
        body = upload if isinstance(upload, bytes) else encode_arrays(upload)
        return list(split(body, size, run=NAME, round=round, device=device, seq=lambda: next(self._seq)))

    def chunk(self, chunk: Chunk, now: float) -> list[Action]:
        return self.send(topics.upload(RUN, chunk.device, chunk.round, chunk.index), chunk, now)

    def upload(self, device: str, round: int, now: float, upload: Arrays | bytes = CODES) -> list[Action]:
        return [action for chunk in self.chunks(device, round, upload) for action in self.chunk(chunk, now)]

    def tick(self, now: float) -> list[Action]:
        return self._did(self.coordinator.tick(now))

    def announce(self, now: float) -> list[Action]:
        return self._did(self.coordinator.announce(now))

    def aggregated(self, now: float, result: Aggregated = RESULT) -> list[Action]:
        return self._did(self.coordinator.aggregated(result, now))

    def start(self, *devices: str, now: float = 1.0) -> list[Action]:
        """Have these devices arrive; the last of them opens round 1."""
        return [action for device in devices for action in self.arrive(device, now)]

    def play(self, round: int, now: float, *devices: str) -> list[Action]:
        """Run a whole round."""
        for device in devices:
            self.upload(device, round, now)
        return self.aggregated(now)


__all__ = [
    "CODES", "HYPER", "LATENT", "METHOD", "NAME", "RESULT", "RUN", "SAMPLES", "Accept", "Aggregate", "Aggregated",
    "Chunk", "Driver", "Finish", "Note", "Record", "Reject", "RoundState", "Telemetry", "Welcome", "notes", "only",
    "plan", "told",
]  # fmt: skip
