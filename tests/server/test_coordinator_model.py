"""Whatever happens in whatever order: nothing raises, nothing is accepted twice, and time brings the end."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from server.driver import CODES, RUN, Driver, plan, told

from broker_server.rounds.actions import Accepted, Aggregate, Finish, Record
from edge_client.protocol.messages import Chunk, RoundState, Standing, Welcome

DEVICES = ("a", "b", "c")
devices = st.sampled_from(DEVICES)
instances = st.sampled_from(("00000000", "11111111"))


class Life(RuleBasedStateMachine):
    """A server under random messages, beside what it must never do."""

    @initialize(participation=st.sampled_from([0.4, 1.0]), deadline=st.sampled_from(["auto", 40.0]),
                minimum=st.integers(1, 3), quorum=st.integers(1, 3))  # fmt: skip
    def begin(self, **chosen: Any) -> None:
        self.now = 0.0
        self.run = Driver(plan(
            devices=3, minimum_devices=chosen["minimum"], participation=chosen["participation"], rounds=3,
            deadline_s=chosen["deadline"], quorum=chosen["quorum"],
        ))  # fmt: skip
        self.on_the_way: list[Chunk] = []

    @rule(seconds=st.floats(0.0, 25.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.run.tick(self.now)

    @rule(device=devices, instance=instances, state=st.sampled_from(["online", "lost", "left", "failed"]))
    def presence(self, device: str, instance: str, state: str) -> None:
        self.run.presence(device, self.now, state=state, instance=instance)

    @rule(device=devices, instance=instances, round=st.integers(0, 4),
          awaits=st.sampled_from(["nothing", "acceptance", "broadcast"]), width=st.sampled_from([5, 5, 6]))  # fmt: skip
    def join(self, device: str, instance: str, round: int, awaits: str, width: int) -> None:
        answer = self.run.join(device, self.now, instance=instance, round=round, awaits=awaits, width=width)
        for welcome in told(answer, Welcome):
            self.check(device, welcome.standing)

    def check(self, device: str, standing: Standing) -> None:
        collection = self.run.coordinator.collection
        if standing.state == "partial":
            assert collection is not None and standing.round == collection.round and standing.missing
        if standing.state == "accepted":
            assert (standing.round, device) in self.accepted()

    @rule(device=devices, instance=instances)
    def arrive(self, device: str, instance: str) -> None:
        self.run.arrive(device, self.now, instance=instance)

    @rule(device=devices, round=st.integers(1, 3), rows=st.sampled_from([1, 3, 3, 9]))
    def prepare(self, device: str, round: int, rows: int) -> None:
        upload = CODES if rows == 3 else {"latents": np.full((rows, 2), 0.5, np.float32)}
        self.on_the_way += self.run.chunks(device, round, upload, size=20)

    @rule(lost=st.sets(st.sampled_from([(d, i) for d in DEVICES for i in range(4)]), max_size=3))
    def uploads_come_in_part(self, lost: set[tuple[str, int]]) -> None:
        self.everyone_uploads(lost)

    def everyone_uploads(self, lost: set[tuple[str, int]]) -> None:
        """As the devices of the open round do; some chunks are lost and may come later."""
        if (collection := self.run.coordinator.collection) is None:
            return
        for device in collection.instances:
            for chunk in self.run.chunks(device, collection.round, size=20):
                if (device, chunk.index) in lost:
                    self.on_the_way.append(chunk)
                else:
                    self.run.chunk(chunk, self.now)

    @rule()
    def a_good_round(self) -> None:
        """Without these a random life hardly ever comes past round 1."""
        if self.run.coordinator.collection is None:
            for device in DEVICES:
                self.run.arrive(device, self.now)
        self.everyone_uploads(set())
        if self.aggregating():
            self.aggregation_is_done(0.5)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), again=st.booleans())
    def deliver(self, data: st.DataObject, again: bool) -> None:
        chunk = data.draw(st.sampled_from(self.on_the_way))
        if not again:
            self.on_the_way.remove(chunk)
        self.run.chunk(chunk, self.now)

    @precondition(lambda self: self.on_the_way)
    @rule()
    def deliver_all(self) -> None:
        for chunk in self.on_the_way:
            self.run.chunk(chunk, self.now)
        self.on_the_way.clear()

    @rule(device=devices, kind=st.sampled_from(["up", "join", "pres", "met"]), garbage=st.binary(max_size=20))
    def garbage(self, device: str, kind: str, garbage: bytes) -> None:
        tail = "/1/0" if kind == "up" else ""
        self.run.send(f"gca/v1/{RUN}/{kind}/{device}{tail}", garbage, self.now)

    @rule()
    def reconnect(self) -> None:
        self.run.announce(self.now)

    @precondition(lambda self: self.aggregating())
    @rule(seconds=st.floats(0.0, 5.0))
    def aggregation_ends(self, seconds: float) -> None:
        self.aggregation_is_done(seconds)

    def aggregation_is_done(self, seconds: float) -> None:
        self.now += seconds
        self.run.aggregated(self.now)

    def aggregating(self) -> bool:
        kinds = Counter(type(action) for action in self.run.log)
        return kinds[Aggregate] > kinds[Record]

    def accepted(self) -> list[tuple[int, str]]:
        return [(a.round, a.device) for a in self.run.log if isinstance(a, Accepted)]

    @invariant()
    def nothing_is_accepted_twice(self) -> None:
        assert max(Counter(self.accepted()).values(), default=1) == 1

    @invariant()
    def rounds_are_aggregated_once_and_in_order_with_what_was_accepted(self) -> None:
        wanted = [a for a in self.run.log if isinstance(a, Aggregate)]
        assert [a.round for a in wanted] == list(range(1, len(wanted) + 1))
        for a in wanted:
            assert list(a.uploads) == sorted(device for round, device in self.accepted() if round == a.round)
            assert len(a.uploads) >= self.run.plan.quorum

    @invariant()
    def the_end_is_told_once(self) -> None:
        assert sum(isinstance(a, Finish) for a in self.run.log) == (self.run.coordinator.outcome is not None)

    @invariant()
    def states_are_numbered_upwards(self) -> None:
        numbers = [state.seq for state in told(self.run.log, RoundState)]
        assert numbers == sorted(set(numbers))

    def teardown(self) -> None:
        """From here on no device says anything but that it was cut off; time alone must bring the end."""
        for device in DEVICES:
            for instance in ("00000000", "11111111"):
                self.run.presence(device, self.now, state="lost", instance=instance)
        for _ in range(100):
            if self.run.coordinator.outcome is not None:
                return
            if self.aggregating():
                self.run.aggregated(self.now)
                continue
            due = self.run.coordinator.due(self.now)
            assert due is not None, "the server waits for what never comes"
            self.now = max(self.now, due)
            self.run.tick(self.now)
        raise AssertionError("no end")


Life.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
