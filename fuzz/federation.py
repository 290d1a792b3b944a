"""A coordinator and a device's mailbox in the middle of a run, for hostile messages to be thrown at."""

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

from broker_server.clustering import ClusteringSpec
from broker_server.methods.base import Aggregate as Aggregated
from broker_server.methods.gca import GcaServer
from broker_server.plan import RunPlan
from broker_server.rounds.actions import Accepted, Action, Aggregate, Amend, Closed, Note, Observe, Publish, Record
from broker_server.rounds.coordinator import Coordinator
from broker_server.study.store import StudyStore
from edge_client.conversation.mailbox import Mailbox
from edge_client.errors import ConfigError, ProtocolError
from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import encode, encode_arrays
from edge_client.protocol.lives import Life
from edge_client.protocol.messages import (
    SERVER,
    Accept,
    Evaluation,
    Header,
    Join,
    Presence,
    Probe,
    Reject,
    RoundState,
    Standing,
    Tally,
    Telemetry,
    Welcome,
)
from edge_client.protocol.tally import TallySheet

RUN, INSTANCE, INCARNATION = "fuzz", "00000000", "5f0c21aa"
NAMES = ("a", "b", "c")
SAMPLES, WIDTH, LATENT = 10, 5, 2
HYPER = Hyperparameters(hidden=(4,), latent_dim=LATENT, upload_fraction=0.5)
CODES = {"latents": np.arange(10, dtype=np.float32).reshape(5, 2)}
BROADCAST = {"centroids": np.zeros((2, 2), np.float32), "support": np.ones(2, np.float32)}
ROUNDS = 2**31
FACTS = 1000
"""Facts that the store commits together."""


class Federation:
    """Three devices in an endless run; `now` goes on with every message. What the server would write down goes into a
    study in `folder`, which must not be there yet."""

    def __init__(self, folder: Path) -> None:
        # No limit to rubbish, so that all of it is read.
        self.plan = RunPlan(run=RUN, incarnation=INCARNATION, method="gca", seed=7, rounds=ROUNDS, hyper=HYPER,
                            devices=3, minimum_devices=1, patience_s=30.0, chunk_size=64, rubbish_limit=10**9,
                            message_limit=10**9)  # fmt: skip
        method = GcaServer(LATENT, HYPER.upload_fraction, ClusteringSpec("kmeans", 2), 7)
        self.coordinator = Coordinator(self.plan, method)
        folder.mkdir()
        self.store = StudyStore.create(folder)
        self.store.group = FACTS
        self._run = self.store.begin_run(self.plan, len(NAMES), "fuzz")
        self.now, self._seq = 0.0, count()
        self.accepted: dict[tuple[int, str], int] = {}
        self.rounds = 0
        self.announced = b""
        for action in self.coordinator.announce(0.0):
            self._write_down(action)
        self.send(topics.round_state(RUN), self.announced)  # as a server hears itself
        for device in NAMES:
            for topic, message in self._arrival(device):
                self.send(topic, encode(message))

    # ---- the server's side --------------------------------------------------------------------------------------

    def send(self, topic: str, payload: bytes) -> None:
        """Let the coordinator have a message, and do what a server does with its wishes."""
        self.now += 0.05
        actions = self.coordinator.take(topic, payload, self.now)
        due = self.coordinator.due(self.now)
        if due is not None and due <= self.now:
            actions += self.coordinator.tick(self.now)
        while actions:
            wishes, actions = actions, []
            for action in wishes:
                if isinstance(action, Accepted):
                    key = action.round, action.device
                    assert key not in self.accepted, f"counted twice: {key}"
                    self.accepted = {k: 1 for k in self.accepted if k[0] == action.round} | {key: 1}
                elif isinstance(action, Aggregate):
                    assert set(action.uploads) <= set(NAMES)
                    self.rounds += 1
                    actions = self.coordinator.aggregated(Aggregated(BROADCAST), self.now)
                else:
                    self._write_down(action)

    def _write_down(self, action: Action) -> None:
        match action:
            case Publish(topic, payload) if topic == topics.round_state(RUN):
                self.announced = payload
            case Record(record):
                self.store.record_round(self._run, record)
            case Amend(amendment):
                self.store.amend_round(self._run, amendment)
            case Observe(telemetry):
                self.store.record_telemetry(self._run, telemetry, self.now)
            case Note(text):
                self.store.note(self._run, self.round, None, "note", text)
            case Closed(closing):
                self.store.record_closing(self._run, closing)

    def close(self) -> None:
        """End the run, with what is left to be written down of it."""
        for action in (*self.coordinator.fail("the campaign is over", self.now), *self.coordinator.closing()):
            self._write_down(action)
        self.store.close()

    @property
    def over(self) -> bool:
        return self.coordinator.outcome is not None

    @property
    def round(self) -> int:
        return self.coordinator.collection.round if self.coordinator.collection else 0

    def valid(self, device: str, chance: random.Random) -> tuple[str, bytes]:
        """Return a message that this device could send now."""
        match chance.randrange(8):
            case 0:
                topic, message = self._arrival(device)[0]
            case 1:
                topic, message = self._arrival(device)[1]
            case 2:
                topic, message = topics.telemetry(RUN, device), self._telemetry(device)
            case _:
                return chance.choice(list(self.upload(device, encode_arrays(CODES))))
        return topic, encode(message)

    def of_a_server(self, chance: random.Random) -> tuple[str, bytes]:
        """Return a message that could come from a server of this run's name: of another run, of this one in another
        life, or from this one's very twin; or what this one has said itself."""
        if chance.random() < 0.2:
            return topics.round_state(RUN), self.announced
        life = Life(chance.choice((INCARNATION, "00000001", "ffffffff")), chance.choice((0, 0, 1, 9)))
        seq = next(self._seq)
        if chance.random() < 0.3:
            probe = Probe(run=f"{RUN}.{life}", device=SERVER, seq=seq, instance=chance.choice((INSTANCE, "00000001")))
            return topics.down(RUN, SERVER, "probe"), encode(probe)
        round = max(0, self.round + chance.choice((-1, 0, 0, 1)))
        kind = chance.choice(("waiting", "open", "closed", "ended"))
        state = RoundState(run=f"{RUN}.{life}", round=round, device=SERVER, seq=seq, state=kind)
        return topics.round_state(RUN), encode(state)

    def upload(self, device: str, body: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the messages of an upload with this body."""
        run, round = self.plan.name, self.round
        for chunk in split(body, 64, run=run, round=round, device=device, seq=self._seq.__next__):
            yield topics.upload(RUN, device, round, chunk.index), encode(chunk)

    def _arrival(self, device: str) -> list[tuple[str, Header]]:
        join = Join(run=self.plan.name, round=self.round, device=device, seq=next(self._seq), instance=INSTANCE,
                    samples=SAMPLES, input_dim=WIDTH, up_rate=1e5, down_rate=1e5, awaits="acceptance")  # fmt: skip
        presence = Presence(run=RUN, device=device, seq=next(self._seq), state="online", instance=INSTANCE)
        return [(topics.presence(RUN, device), presence), (topics.join(RUN, device), join)]

    def _telemetry(self, device: str) -> Telemetry:
        judged = Evaluation(phase="recon", epoch=1, loss=0.5, threshold=1.0, accuracy=0.75, auroc=0.5,
                            average_precision=0.5)  # fmt: skip
        return Telemetry(run=self.plan.name, round=self.round, device=device, seq=next(self._seq), outcome="completed",
                         spent_s={"upload": 1.5}, spans_s={"upload": (2.0, 0.5)}, evaluations=(judged,),
                         tallies=(Tally(direction="up", kind="upload", messages=1),), ignored={"stale": 1},
                         state_sha256="ab" * 32)  # fmt: skip


class Post:
    """A device's mailbox in the middle of a round."""

    def __init__(self) -> None:
        self._name = f"{RUN}.{INCARNATION}"
        self._head = {"run": self._name, "round": 3, "device": SERVER, "seq": 7}
        self.mail = Mailbox(RUN, "a", INSTANCE, TallySheet())
        self.mail.take(topics.down(RUN, "a", "welcome"), encode(self._welcome()))
        self.mail.expect_broadcast(3)

    def take(self, topic: str, payload: bytes) -> None:
        try:
            self.mail.take(topic, payload)
            if self.mail.broadcast_complete:
                self.mail.broadcast()
        except (ConfigError, ProtocolError):
            return  # a second server, or a body that does not fit its digest

    def _welcome(self) -> Welcome:
        return Welcome(**self._head, instance=INSTANCE, method="gca", seed=7, rounds=9, hyper=HYPER,
                       standing=Standing(3, "partial", (0, 2)))  # fmt: skip

    def valid(self, chance: random.Random) -> tuple[str, bytes]:
        """Return a message that the server could send now."""
        head = self._head | {"seq": chance.randrange(100)}
        match chance.randrange(6):
            case 0:
                return topics.down(RUN, "a", "welcome"), encode(self._welcome())
            case 1:
                return topics.down(RUN, "a", "accept"), encode(Accept(**head))
            case 2:
                refused = Reject(**head, reason="late", detail="the round closed", instance=INSTANCE)
                return topics.down(RUN, "a", "reject"), encode(refused)
            case 3:
                return topics.down(RUN, "a", "probe"), encode(Probe(**head, instance=INSTANCE))
            case 4:
                state = RoundState(**head, state="closed", chunks=2, size=90, digest=bytes(8))
                return topics.round_state(RUN), encode(state)
        body = encode_arrays(BROADCAST)
        chunk = chance.choice(list(split(body, 64, run=self._name, round=3, device=SERVER, seq=lambda: 9)))
        return topics.broadcast(RUN, 3, chunk.index), encode(chunk)
