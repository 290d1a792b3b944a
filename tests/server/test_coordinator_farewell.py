"""How a run ends: in order or by a failure, who is waited for, and that nothing stays behind."""

import pytest
from server.driver import (
    RESULT,
    RUN,
    Driver,
    Reject,
    RoundState,
    notes,
    plan,
    told,
)

from broker_server.rounds.actions import Closed, Publish
from edge_client.protocol import topics
from edge_client.protocol.codec import encode_arrays
from edge_client.protocol.messages import FAREWELL_S


def test_a_failure_ends_the_run_and_its_late_result_changes_nothing() -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.upload("b", 1, 2.0)
    failed = run.coordinator.fail("aggregation of round 1 failed: ValueError: K is larger than the pool", 3.0)
    (state,) = told(failed, RoundState)
    assert state.state == "ended" and state.reason.startswith("aggregation of round 1 failed: ValueError")
    assert run.aggregated(4.0) == []
    assert run.upload("a", 1, 5.0) != [] and run.tick(500.0) == []


def test_uploads_after_a_failure_are_late() -> None:
    run = Driver()
    run.start("a", "b")
    run.coordinator.fail("interrupted", 3.0)
    assert [r.reason for r in told(run.upload("a", 1, 4.0), Reject)] == ["late"]


def test_goodbyes_are_waited_for_as_long_as_the_last_broadcast_may_take_to_be_used() -> None:
    """a needed 10 s at most, b 20 s; the 97 B of the broadcast take b at 97 bit/s 8 s more. Three times the slower,
    28 s, and the patience."""
    run = Driver(plan(rounds=1, patience_s=5.0))
    run.presence("a", 1.0)
    run.presence("b", 1.0)
    body = len(encode_arrays(RESULT.broadcast))
    run.join("a", 1.0)
    run.join("b", 1.0, down_rate=float(body))
    run.upload("a", 1, 11.0)
    run.upload("b", 1, 21.0)
    run.aggregated(22.0)
    assert run.coordinator.farewell_due(22.0) == pytest.approx(22.0 + 3 * (20 + 8) + 5)
    run.presence("b", 30.0, state="left")
    assert run.coordinator.farewell_due(30.0) == pytest.approx(22.0 + 3 * 10 + 5)


def test_a_device_cut_off_at_the_end_is_waited_for_no_longer_than_the_patience() -> None:
    run = Driver(plan(rounds=1, patience_s=15.0))
    run.start("a", "b")
    run.upload("a", 1, 101.0)
    run.upload("b", 1, 101.0)
    run.presence("a", 101.5, state="lost")
    run.aggregated(102.0)
    assert run.coordinator.farewell_due(102.0) == pytest.approx(102 + 3 * 100 + 15)  # b is there
    run.presence("b", 110.0, state="left")
    assert not run.coordinator.all_gone and run.coordinator.farewell_due(110.0) == 125.0
    run.presence("a", 120.0)
    assert run.coordinator.farewell_due(120.0) == pytest.approx(102 + 3 * 100 + 15)


def test_who_missed_the_end_of_a_complete_run_is_named_among_the_remarks_on_its_last_round() -> None:
    run = Driver(plan(rounds=1))
    run.start("a", "b")
    run.play(1, 2.0, "a", "b")
    run.presence("b", 3.0, state="left")
    assert notes(run.coordinator.no_goodbyes()) == ["round 1: the run is over, and no goodbye came from a"]
    assert run.coordinator.outcome is not None and run.coordinator.outcome.completed
    run.presence("a", 4.0, state="left")
    assert run.coordinator.no_goodbyes() == []


def test_a_run_that_failed_waits_for_nobody_who_is_not_there() -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.presence("a", 3.0, state="lost")
    run.coordinator.fail("a died", 4.0)
    run.presence("b", 5.0, state="left")
    assert run.coordinator.all_gone


def test_a_run_that_failed_tells_so_at_once_and_waits_shortly() -> None:
    run = Driver(plan(patience_s=500.0))
    run.start("a", "b")
    assert notes(run.coordinator.fail("the disk is full", 3.0)) == ["the run ends early: the disk is full"]
    assert run.coordinator.farewell_due(4.0) == 3.0 + FAREWELL_S


def test_nothing_is_left_behind() -> None:
    run = Driver()
    run.start("a", "b")
    run.arrive("c", 2.0, width=9)  # refused, but its presence is retained
    *swept, closed = run.coordinator.closing()
    assert isinstance(closed, Closed)
    closing = closed.closing
    assert {(a.topic, a.payload, a.retain) for a in swept if isinstance(a, Publish)} == {
        (topics.presence(RUN, device), b"", True) for device in "abc"
    }
    assert closing.round == 1 and set(closing.tallies) == {"a", "b", "c"}
