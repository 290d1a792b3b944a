"""The round coordinator: Algorithm 1 from the server's side, sans-io.

Messages, the passing of time and finished aggregations go in; actions (`actions.py`) come out. It owns every
deadline of the run. A run waits for devices, then each round is open (collecting uploads), closed (aggregating)
and published, until it has ended. What is lost on the way is asked for again by the devices themselves (`Join`),
whenever they reconnect or hear a round announced anew; every answer can be given any number of times.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker_server.methods.base import Aggregate as Aggregated
from broker_server.methods.base import ServerMethod
from broker_server.plan import RunPlan
from broker_server.rounds.actions import (
    Action,
    Aggregate,
    Checkpoint,
    Closed,
    Finish,
    Note,
    Observe,
    Opened,
    Publish,
    Record,
    Superseded,
)
from broker_server.rounds.calls import Calls
from broker_server.rounds.collection import Collection, over
from broker_server.rounds.conduct import Conduct
from broker_server.rounds.deadline import earliest
from broker_server.rounds.door import Door
from broker_server.rounds.farewell import Farewell
from broker_server.rounds.gate import Flawed, Gate, Letter, Rumour, Stranger
from broker_server.rounds.herald import Herald
from broker_server.rounds.intake import Intake
from broker_server.rounds.ledger import Ledger
from broker_server.rounds.members import Members, room_for
from broker_server.rounds.muster import Muster
from broker_server.rounds.past import Past
from broker_server.rounds.reports import Reports
from broker_server.rounds.rivals import gives_way, yields
from broker_server.rounds.round_limit import RoundLimit
from broker_server.rounds.signs_of_life import SignsOfLife
from broker_server.rounds.standing import standing
from broker_server.study.records import ENDS_EARLY, Closing, Outcome, RoundRecord
from broker_server.study.start import Start
from edge_client.protocol import topics
from edge_client.protocol.codec import Arrays
from edge_client.protocol.lives import Life, life_in
from edge_client.protocol.messages import COMPLETED, Chunk, Join, Presence, Probe, RoundState, Standing, Telemetry
from edge_client.transport.pacing import slowest
from edge_client.words import counted


class Coordinator:
    """See the module. `now` is seconds since the run began, on whatever clock."""

    def __init__(self, plan: RunPlan, method: ServerMethod) -> None:
        self.plan, self.method = plan, method
        self.ledger, self.members = Ledger(), Members(plan.start.elapsed_s, room_for(plan.devices))
        self.collection: Collection | None = None
        self.outcome: Outcome | None = None
        self.counts: Counter[str] = Counter()
        self._past = Past(latest_only=method.broadcasts_to_all)
        if plan.start.completed:
            self._past.add(over(plan.start.completed, plan.start.accepted), None)
        self._herald = Herald(plan, self.ledger, self._past)
        self._conduct = Conduct(plan, method, self.members)
        self._gate = Gate(plan, self.members, self.ledger, self.counts, self._conduct, self._herald.echoes)
        self._door = Door(plan, method, self._herald, self.members, self.counts)
        self._calls = Calls(plan, method, self.members, self._conduct)
        self._intake = Intake(method, self.members, self._herald, self.ledger, self._gate, self.counts)
        self._reports = Reports()
        self._limit = RoundLimit(plan, method, self.members, self._herald)
        self._farewell = Farewell(plan, method, self.members, self._limit)
        self._muster = Muster(plan)
        self._signs, self._superseded = SignsOfLife(), False
        self._speaker = ""
        self._completed = plan.start.completed
        self._broadcast: Arrays | None = plan.start.broadcast

    # ---- what comes in ------------------------------------------------------------------------------------------

    def announce(self, now: float) -> list[Action]:
        """Say (again) where the run stands: on every new connection of the server. What is repeated says which process
        repeats it: two that go on with copies of one study and throw each other off would else say the same."""
        speaker, self._speaker = self._speaker, self.plan.instance
        self.members.forget_presence()
        return [self._state(speaker), *self.tick(now)]

    def take(self, topic: str, payload: bytes, now: float, retained: bool = False) -> list[Action]:
        """Use one message. Whatever is wrong with it is counted and told to its device, and harms nobody else.
        `retained`: the broker had kept it from before this connection."""
        match opened := self._gate.open(topic, payload, retained):
            case Letter():
                told = self._read(opened, now)
            case Flawed(device, address, why):
                told = self._refuse(device, address.round, why, now) if address.kind is Chunk else []
            case Stranger(join):
                told = self._door.stranger(join)
            case Rumour(other):
                told = self._of_a_rival(other, now)
            case _:
                told = []
        return [*told, *(action for one in self._conduct.newly_excluded() for action in self._exclude(*one, now))]

    def _read(self, letter: Letter, now: float) -> list[Action]:
        device, address, message, size = letter
        match message:
            case Presence():
                self.ledger.received(device, "control", size)
                return self._presence(message, now)
            case Join():
                self.ledger.received(device, "control", size)
                return self._join(message, now)
            case Chunk() if (message.round, message.index) == (address.round, address.index):
                return self._chunk(device, message, size, now)
            case Telemetry():
                self.ledger.received(device, "telemetry", size)
                if (flaw := self._reports.flaw(message, self._round)) is None:
                    return [Observe(message)]
                self._gate.useless(device, f"report_{flaw}")
            case _:
                self._gate.foreign(device, size)
        return []

    def tick(self, now: float) -> list[Action]:
        """Let time pass: start, close or give up what is due."""
        told, newcomers = self._door.unanswered(now)
        told += [action for join in newcomers for action in self._join(join, now)]
        told += self._sign(now)
        if self.outcome is None:
            told += self._wait(now) if self.collection is None else self._progress(now)
        return told

    def due(self, now: float) -> float | None:
        """Return when the next `tick` is wanted; None if only a message can change anything."""
        return earliest(self.members.answer_due_s, self._signs.due_s, self._patience_ends(now))

    def _patience_ends(self, now: float) -> float | None:
        """Return when to say something of the wait for devices, or to give up that for devices or uploads."""
        collection = self.collection
        if self.outcome is not None or (collection is not None and not collection.is_open):
            return None
        if collection is None:
            return self._muster.due(len(self.members.joined))
        deserted = None if collection.deserted_s is None else collection.deserted_s + self.plan.patience_s
        return earliest(self._limit.kept(collection, now), deserted)

    def aggregated(self, result: Aggregated, now: float) -> list[Action]:
        """Publish what aggregation gave and go on to the next round, unless the run has ended meanwhile."""
        if self.outcome is not None:
            return []
        collection = self.collection
        assert collection is not None and not collection.is_open
        listeners = tuple(d for d in collection.audience if d in self.members.joined)
        rate, joined = slowest(*(self.members.joined[d].down_rate for d in listeners)), tuple(self.members.joined)
        actions: list[Action] = [*self._herald.close(collection, joined, listeners, result.travels, rate)]
        actions += [Note(f"round {collection.round}: {remark}") for remark in result.remarks]
        self._completed, self._broadcast = collection.round, result.broadcast
        reached = Start(collection.round, result.broadcast, now, self._herald.seq, self.members.elapsed_s,
                        result.packed, self.members.input_dim, tuple(sorted(collection.accepted)))  # fmt: skip
        actions += [Checkpoint(reached), Record(self._record(collection, result.diagnostics, now))]
        return actions + self._go_on(now)

    def fail(self, reason: str, now: float) -> list[Action]:
        """End the run because something around the coordinator failed; devices are told."""
        return self._end(False, reason, now) if self.outcome is None else []

    @property
    def has_given_way(self) -> bool:
        """Whether the run's topics, and the client id, are another server's."""
        return self._superseded

    @property
    def all_gone(self) -> bool:
        """Whether nobody has to be waited for any more, once the run has ended."""
        return self._farewell.all_gone(self.outcome, self.collection)

    def farewell_due(self, now: float) -> float:
        """Return until when to wait, after the end, for devices that have not said goodbye."""
        assert self.outcome is not None
        return self._farewell.due(self.outcome, now)

    def no_goodbyes(self) -> list[Action]:
        """Tell who has missed the end of the run, as it is waited for no longer."""
        missed = ", ".join(sorted(self.members.joined))
        return [Note(f"round {self._round}: the run is over, and no goodbye came from {missed}")] if missed else []

    def closing(self) -> list[Action]:
        """Leave nothing behind: clear the retained presences, and hand over what the ledgers still hold. From now on
        nothing is said."""
        self._signs.stop()
        kept = [] if self._superseded else sorted(self.members.known)  # else the devices are another server's
        swept = [Publish(topics.presence(self.plan.run, device), b"", retain=True) for device in kept]
        return [*swept, Closed(Closing(self._round, self.ledger.drain(), dict(self.counts), self._conduct.drain()))]

    def _of_a_rival(self, other: RoundState | Probe, now: float) -> list[Action]:
        """Show another server of this run's name that this one is there, or give way to it."""
        theirs = life_in(other.run, self.plan.run)
        is_of_our_run = theirs is not None and theirs.incarnation == self.plan.incarnation
        if self.outcome is None and isinstance(other, RoundState) and yields(self.plan, self._round, other):
            self._superseded = True
            why = gives_way(self.plan, other, "on this broker")
            # Devices would take our end for that of the run which another goes on with.
            return [Superseded(why, at_once=is_of_our_run), *self._end(False, why, now, told=not is_of_our_run)]
        if self.outcome is not None and isinstance(other, RoundState):
            if not (theirs is not None and Life(self.plan.incarnation, self.plan.life).goes_on_from(theirs)):
                self._superseded |= other.state != "ended"  # begun unheard: what stands on the broker is its own
            return []
        self._signs.asked(now)
        return self._sign(now)

    def _sign(self, now: float) -> list[Action]:
        """Show other servers that this one is there, if that is due. One that has ended does so for as long as it waits
        for devices, as it needs the client id that all share; one that has given way leaves it to the other."""
        if not self._signs.give(now) or self._superseded or (self.outcome is not None and self.all_gone):
            return []
        return list(self._herald.sign())

    # ---- devices come and go ------------------------------------------------------------------------------------

    def _presence(self, presence: Presence, now: float) -> list[Action]:
        self.members.see(presence)
        member, device = self.members.joined.get(presence.device), presence.device
        if member is None or member.instance != presence.instance:
            return []
        told, newcomers = self._door.heard(presence, now)
        if presence.state == "online":
            self._calls.back(self.collection, device)
        elif self.outcome is None and device not in self._conduct.excluded:
            told.append(Note(f"{device} {presence.state}" + (f": {presence.detail}" if presence.detail else "")))
        if presence.state in ("left", "failed"):
            self.members.remove(device)
            if self.collection is not None and self.collection.is_open:
                told += self._calls.gone(self.collection, presence)
        told += [action for join in newcomers for action in self._join(join, now)]
        return told + self.tick(now)

    def _join(self, join: Join, now: float) -> list[Action]:
        answer = self._door.weigh(join)
        if refused := self._door.refusal(join, now):
            self._conduct.useless(join.device, "refused")
            return [*answer, *refused]
        self._reports.admit(join.device, join.instance)
        if self.members.admit(join, now) and self.collection is not None:
            answer += self._calls.started_anew(self.collection, join)
        self._calls.back(self.collection, join.device)
        told = self._standing(join)
        past = self._round - 1 if self._calls.are_for(self.collection, join) else self._round
        answer.append(self._herald.welcome(join, past, told))
        if told.state in ("follows", "partial"):
            self._conduct.long_answer(join.device)
        if told.state == "follows" and (earlier := self._past.round(join.round)) is not None:
            answer += self._herald.catch_up(join.device, earlier, slowest(join.down_rate))
        return answer + self.tick(now)

    def _standing(self, join: Join) -> Standing:
        """What the server can say about what a device awaits."""
        return standing(join, self.collection, self._past, round=self._round, running=self.outcome is None)

    def _wait(self, now: float) -> list[Action]:
        """Before the first round: wait for all devices, saying so, but not for ever."""
        if self._completed >= self.plan.rounds:  # it was stopped between the last round and the end
            return self._go_on(now)
        told = self._door.weigh(None) if now >= self._muster.until_s else []
        have = len(self.members.joined)
        if self._muster.complete(have, now) and not self._door.is_undecided:
            return [*told, *self._go_on(now)]
        if failure := self._muster.failure(have, now):
            return [*told, *self._end(False, failure, now)]
        news = self._muster.news(have, now)
        return [Note(news)] if news else []

    # ---- one round ----------------------------------------------------------------------------------------------

    def _go_on(self, now: float) -> list[Action]:
        """Open the next round, or end the run after the last."""
        return self._open(now) if self._completed < self.plan.rounds else self._end(True, "", now)

    def _open(self, now: float) -> list[Action]:
        """Line 3: draw the cohort S_r and call it."""
        round = self._completed + 1
        if not self.members.joined:
            return self._end(False, f"round {round}: no device is left", now)
        self._door.round_opens()
        self.collection = self._calls.open(round, now)
        self._conduct.new_round()
        return [Opened(round, len(self.collection.instances)), self._state(), *self._progress(now)]

    def _chunk(self, device: str, chunk: Chunk, size: int, now: float) -> list[Action]:
        told = self._intake.take(self.collection, device, chunk, size, now)
        return [*told, *self._progress(now)] if told else []

    def _refuse(self, device: str, round: int | None, why: str, now: float) -> list[Action]:
        """Go on without an upload that cannot be used."""
        told = self._intake.refuse(self.collection, device, round, why)
        return [*told, *self._progress(now)] if told else []

    def _exclude(self, device: str, why: str, now: float) -> list[Action]:
        """Read nothing of a device any more in this round, and do not wait for it."""
        note = Note(f"{device} is excluded from round {self._round}: {why}")
        return [note, *self._refuse(device, self._round, why, now)]

    def _progress(self, now: float) -> list[Action]:
        """Close the round when nobody is outstanding, enough is here, or waiting any longer is pointless."""
        collection = self.collection
        if collection is None or not collection.is_open:
            return []
        outstanding = collection.outstanding
        deserted = bool(outstanding) and not any(self.members.online(device) for device in outstanding)
        if not deserted:
            collection.deserted_s = None
        elif collection.deserted_s is None:
            collection.deserted_s = now
        due = self._patience_ends(now)
        if outstanding and not collection.enough and (due is None or now < due):
            return []
        collection.closed_s = now
        if len(collection.accepted) < self.plan.quorum:
            why = "; ".join(f"{d}: {r}" for d, r in sorted(collection.rejected.items())) or "none came in time"
            need = self.plan.quorum
            return self._end(
                False, f"round {collection.round}: {len(collection.accepted)} of {counted(need, 'upload')} ({why})", now
            )
        return [Aggregate(collection.round, collection.hand_over(), self._broadcast)]

    # ---- what goes out ------------------------------------------------------------------------------------------

    @property
    def _round(self) -> int:
        return self.collection.round if self.collection else self._completed

    def _state(self, speaker: str = "") -> Action:
        audience, collection = tuple(self.members.joined), self.collection
        if self.outcome is not None:
            end = self._herald.state("ended", self._round, audience, reason=self.outcome.reason or COMPLETED)
            return replace(end, retain=not self._superseded)  # what stands there may be another server's
        if collection is None:
            return self._herald.state("waiting", self._round, audience, reason=speaker)
        deadline = self._limit.anew(collection)
        allowed = None if deadline is None else deadline - collection.opened_s
        return self._herald.state("open", collection.round, audience, cohort=collection.cohort, deadline_s=allowed,
                                  reason=speaker)  # fmt: skip

    def _record(self, collection: Collection, diagnostics: Mapping[str, Any], now: float) -> RoundRecord:
        deadline, counts = self._limit.anew(collection), dict(self.counts)
        self.counts.clear()
        self._intake.recorded(collection)
        return RoundRecord(
            collection.round, collection.opened_s, collection.closed_s or now, now, deadline,
            tuple(sorted(collection.accepted)), tuple(sorted(collection.late)), tuple(sorted(collection.rejected)),
            collection.missing, self.ledger.drain(), counts, dict(diagnostics), self._conduct.drain(),
        )  # fmt: skip

    def _end(self, completed: bool, reason: str, now: float, told: bool = True) -> list[Action]:
        self.outcome = Outcome(completed, self._completed, now, reason)
        if self.collection is not None and self.collection.is_open:
            self.collection.closed_s = now
        end: list[Action] = [*([self._state()] if told else []), Finish(self.outcome)]
        return end if completed else [*end, Note(f"{ENDS_EARLY}{reason}")]
