"""From an empty run to an open round: waiting, impostors, devices that do not fit, leftovers of older servers."""

import pytest
from msgspec.structs import replace
from server.driver import NAME, RUN, Driver, Finish, Reject, RoundState, Welcome, notes, only, plan, told

from broker_server.rounds.actions import Opened
from edge_client.errors import ConfigError
from edge_client.protocol import topics
from edge_client.protocol.messages import Presence, Probe


def test_who_waits_is_told_what_for() -> None:
    run = Driver()
    assert [s.state for s in told(run.announce(0.0), RoundState)] == ["waiting"]
    assert notes(run.log) == ["waiting: have 0, need 2, 0 s of 60 s"]
    assert "waiting: have 1, need 2, 17 s of 60 s" in notes(run.arrive("a", 17.0))
    assert run.coordinator.due(17.0) == 47.0
    assert notes(run.tick(46.0)) == []
    assert notes(run.tick(47.0)) == ["waiting: have 1, need 2, 47 s of 60 s"]


def test_a_thousand_devices_that_come_within_a_second_are_one_line() -> None:
    run = Driver(plan(devices=2000, minimum_devices=2000))
    run.announce(0.0)
    for number in range(1000):
        run.arrive(f"d{number}", 0.5)
    assert run.coordinator.due(0.5) == 1.0
    run.tick(1.0)
    assert notes(run.log) == ["waiting: have 0, need 2000, 0 s of 60 s", "waiting: have 1000, need 2000, 1 s of 60 s"]


def test_devices_may_be_waited_for_longer_than_their_uploads() -> None:
    run = Driver(plan(join_s=600.0, deadline_s=30.0))
    run.arrive("a", 1.0)
    run.tick(599.0)
    assert run.coordinator.outcome is None and run.coordinator.due(599.0) == 600.0
    assert only(run.tick(600.0), Finish).outcome.reason == "only 1 of 2 devices joined in 600 s"


def test_patience_ends_with_a_clear_end() -> None:
    run = Driver()
    run.arrive("a", 1.0)
    run.tick(58.0)
    assert run.coordinator.due(58.0) == 60.0
    ended = run.tick(60.0)
    (state,) = told(ended, RoundState)
    assert (state.state, state.reason) == ("ended", "only 1 of 2 devices joined in 60 s")
    assert only(ended, Finish).outcome.completed is False
    assert run.tick(61.0) == [] and run.coordinator.due(61.0) is None


def test_patience_over_the_minimum_goes_on_with_those_there() -> None:
    run = Driver(plan(devices=3, minimum_devices=2))
    assert told(run.start("a", "b"), RoundState) == []
    assert only(run.tick(60.0), Opened) == Opened(1, 2)


def test_the_last_device_opens_round_1() -> None:
    run = Driver()
    run.announce(0.0)
    assert told(run.arrive("a", 1.0), RoundState) == []
    answer = run.arrive("b", 2.0)
    (welcome,), (state,) = told(answer, Welcome), told(answer, RoundState)
    assert (welcome.round, welcome.run, welcome.standing.state) == (0, NAME, "nothing")
    assert (state.state, state.round, state.deadline_s) == ("open", 1, None)
    assert welcome.seq < state.seq
    assert only(answer, Opened) == Opened(1, 2)


def test_a_device_that_joins_during_a_round_begins_with_the_next() -> None:
    run = Driver(plan(devices=2))
    run.start("a", "b")
    (welcome,) = told(run.arrive("c", 2.0), Welcome)
    assert welcome.round == 1
    run.upload("a", 1, 3.0)
    run.upload("b", 1, 3.0)
    assert only(run.aggregated(4.0), Opened) == Opened(2, 3)


def test_a_lost_welcome_does_not_keep_a_device_out_of_the_round_it_was_asked_for() -> None:
    """Whoever was asked hears of the round before its (second) welcome: that must not count it as past."""
    run = Driver()
    run.start("a", "b")
    (again,) = told(run.join("b", 2.0), Welcome)
    assert again.round == 0
    run.upload("a", 1, 3.0)
    run.upload("b", 1, 3.0)  # closed
    (late,) = told(run.join("b", 4.0), Welcome)
    assert late.round == 1


def test_a_second_device_with_the_same_id_is_refused_once_the_first_has_answered() -> None:
    run = Driver()
    run.start("a", "b")
    run.presence("a", 13.0, instance="11111111")
    asked = run.join("a", 13.0, instance="11111111")
    assert [p.instance for p in told(asked, Probe)] == ["00000000"] and not told(asked, Welcome) + told(asked, Reject)
    refused = run.presence("a", 14.0, instance="00000000")  # retained: it stands again where the second's stood
    (reject,) = told(refused, Reject)
    assert (reject.reason, reject.instance, reject.device) == ("duplicate", "11111111", "server")
    assert "a device named a joined 13 s ago" in reject.detail
    run.presence("a", 15.0, state="lost", instance="11111111")
    assert run.coordinator.members.online("a")
    assert len(told(run.upload("a", 1, 16.0), Reject)) == 0
    assert "a" in run.coordinator.collection.accepted
    assert not told(run.log, Welcome)[2:]  # of a and b


def test_a_machine_that_lost_power_is_back_in_seconds() -> None:
    """Its old connection is half-open, and the broker will miss it only when the keepalive expires."""
    run = Driver(plan(deadline_s=500.0))
    run.start("a", "b")
    run.presence("a", 10.0, instance="11111111")
    run.join("a", 10.0, instance="11111111")
    assert run.coordinator.due(10.0) == 15.0
    assert told(run.tick(14.9), Welcome) == []
    answer = run.tick(15.0)
    (welcome,), (reject,) = told(answer, Welcome), told(answer, Reject)
    assert (welcome.instance, welcome.round) == ("11111111", 0)  # round 1 still wants its upload
    assert (reject.instance, reject.reason) == ("00000000", "duplicate")  # should the old one live after all
    run.presence("a", 90.0, state="lost")  # the last will of the old one, at last
    assert run.online == ("a", "b")


def test_an_answer_that_comes_too_late_starts_no_war() -> None:
    """The first was only slow. It learns that its name is gone; whatever it says then changes nothing."""
    run = Driver()
    run.start("a", "b")
    run.arrive("a", 10.0, instance="11111111")
    run.tick(15.0)
    assert run.presence("a", 15.5) == []
    assert [p.instance for p in told(run.join("a", 16.0), Probe)] == ["11111111"]
    (reject,) = told(run.presence("a", 16.1, instance="11111111"), Reject)
    assert reject.instance == "00000000"
    assert run.coordinator.members.joined["a"].instance == "11111111"


def test_an_answer_may_take_as_long_as_what_is_under_way_on_the_link() -> None:
    """1 kbit/s: chunks of 1,770 B, 1,874 B on the wire, two of them for up to twice 29.984 s; and 5 s."""
    run = Driver(plan(deadline_s=500.0))
    run.arrive("a", 1.0, up_rate=1000.0)
    run.arrive("b", 1.0)
    run.arrive("a", 10.0, instance="11111111")
    assert run.coordinator.due(10.0) == pytest.approx(10 + 5 + 2 * 29.984)


def test_newcomers_of_one_name_are_few_and_one_of_them_has_it() -> None:
    run = Driver()
    run.start("a", "b")
    first = [run.arrive("a", 10.0 + n / 10, instance=f"{n}{n}{n}{n}{n}{n}{n}{n}") for n in range(1, 7)]
    assert [len(told(answer, Probe)) for answer in first] == [1, 1, 1, 1, 0, 0]
    assert [r.instance for answer in first for r in told(answer, Reject)] == ["55555555", "66666666"]
    after = run.tick(15.2)
    assert [w.instance for w in told(after, Welcome)] == ["11111111"]
    assert {p.instance for p in told(after, Probe)} == {"11111111"}


def test_who_asks_again_meanwhile_does_not_move_the_moment() -> None:
    run = Driver()
    run.start("a", "b")
    run.arrive("a", 10.0, instance="11111111")
    run.join("a", 14.0, instance="11111111")
    assert run.coordinator.due(14.0) == 15.0


def test_the_holder_that_goes_decides_at_once() -> None:
    run = Driver()
    run.start("a", "b")
    run.arrive("a", 10.0, instance="11111111")
    assert [w.instance for w in told(run.presence("a", 11.0, state="lost"), Welcome)] == ["11111111"]
    assert run.coordinator.members.answer_due_s is None


def test_nobody_may_be_called_as_the_server_is() -> None:
    run = Driver()
    assert run.join("server", 1.0) == [] and run.presence("server", 1.0) == []
    assert run.coordinator.counts == {"foreign": 2} and run.coordinator.members.known == set()


def test_a_restarted_device_gets_in_once_its_old_process_is_gone() -> None:
    run = Driver()
    run.start("a", "b")
    run.presence("a", 2.0, state="lost")
    assert len(told(run.arrive("a", 3.0, instance="11111111"), Welcome)) == 1


def test_the_last_will_of_a_devices_old_process_harms_its_new_one_nothing() -> None:
    """The broker notices a broken connection late: the new process may long be there."""
    run = Driver(plan(deadline_s=500.0))
    run.start("a", "b")
    run.announce(2.0)  # the broker restarted; only the new process shows up
    run.arrive("a", 3.0, instance="11111111")
    assert run.presence("a", 4.0, state="lost") == []
    assert run.online == ("a",)


@pytest.mark.parametrize("run_name", ["hand.00000000", "other", "hand.5f0c21aa.x"])
def test_messages_of_other_servers_runs_are_counted_and_nothing_else(run_name: str) -> None:
    run = Driver()
    assert run.join("a", 1.0, run=run_name) == []
    message = Presence(**run.head("a", run=run_name), state="online", instance="00000000")
    assert run.send(topics.presence(RUN, "a"), message, 1.0) == []
    assert run.coordinator.counts == {"foreign": 2}
    assert run.coordinator.members.joined == {}


def test_a_device_that_is_not_welcome_yet_may_use_the_bare_run_name_to_join_but_not_to_upload() -> None:
    run = Driver()
    run.arrive("b", 1.0)
    assert len(told(run.join("a", 1.0, run=RUN), Welcome)) == 1
    (chunk,) = run.chunks("a", 1)
    assert run.chunk(replace(chunk, run=RUN), 2.0) == []
    assert run.coordinator.counts["foreign"] == 1


@pytest.mark.parametrize("topic", ["gca/v1/else/join/a", "gca/v1/hand/nonsense", "gca/v1/hand/up/a/x/0", "", "gca"])
def test_other_topics_are_counted_as_foreign(topic: str) -> None:
    run = Driver()
    assert run.send(topic, b"\x80", 1.0) == []
    assert run.coordinator.counts == {"foreign": 1}


def test_cleared_presences_are_nobodys_message() -> None:
    run = Driver()
    assert run.send(topics.presence(RUN, "a"), b"", 1.0) == []
    assert run.coordinator.counts == {}


def test_a_run_that_messages_could_not_name_is_refused_before_it_starts() -> None:
    assert plan(run="x" * 55).name
    for name in ("x" * 56, "a b", "", ".a", "a/b", "é"):
        with pytest.raises(ConfigError, match="1 to 55"):
            plan(run=name)
