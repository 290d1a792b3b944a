"""Rounds by hand: who is waited for and until when, what is counted, and that the run ends exactly once."""

from typing import Any

import numpy as np
import pytest
from server.driver import (
    CODES,
    RUN,
    Accept,
    Aggregate,
    Driver,
    Finish,
    Record,
    Reject,
    RoundState,
    Welcome,
    notes,
    only,
    plan,
    told,
)

from broker_server.rounds.actions import Accepted, Amend, Note, Publish
from broker_server.study.records import Amendment
from edge_client.cohort import takes_part
from edge_client.protocol import topics
from edge_client.protocol.codec import encode, encode_arrays
from edge_client.protocol.messages import Tally


def test_the_last_upload_closes_the_round_at_once() -> None:
    run = Driver()
    run.start("a", "b")
    first = run.upload("a", 1, 5.0)
    assert only(first, Accepted) == Accepted(1, "a") and len(told(first, Accept)) == 1
    assert not [a for a in first if isinstance(a, Aggregate)]
    wanted = only(run.upload("b", 1, 6.0), Aggregate)
    assert list(wanted.uploads) == ["a", "b"]
    assert run.coordinator.due(6.0) is None


def test_uploads_are_handed_over_in_order_of_name_whatever_their_order() -> None:
    run = Driver()
    run.start("b", "a")
    run.upload("b", 1, 2.0)
    assert list(only(run.upload("a", 1, 2.0), Aggregate).uploads) == ["a", "b"]


def test_a_whole_run_ends_exactly_once() -> None:
    run = Driver()
    run.start("a", "b")
    middle = run.play(1, 3.0, "a", "b")
    assert [(s.state, s.round) for s in told(middle, RoundState)] == [("closed", 1), ("open", 2)]
    end = run.play(2, 5.0, "a", "b")
    assert [(s.state, s.round, s.reason) for s in told(end, RoundState)] == [
        ("closed", 2, ""), ("ended", 2, "completed")]  # fmt: skip
    assert only(run.log, Finish).outcome.completed
    for afterwards in (run.tick(9.0), run.aggregated(9.0), run.coordinator.fail("too late", 9.0)):
        assert afterwards == []
    assert len([a for a in run.log if isinstance(a, Record)]) == 2


def test_the_deadline_passes_with_nobody_saying_anything() -> None:
    run = Driver(plan(deadline_s=30.0))
    run.start("a", "b", now=1.0)
    run.upload("a", 1, 10.0)
    assert run.coordinator.due(10.0) == 31.0
    assert run.tick(30.9) == []
    assert list(only(run.tick(31.0), Aggregate).uploads) == ["a"]


def test_before_anyone_delivered_an_automatic_deadline_is_not_known() -> None:
    run = Driver()
    run.start("a", "b", now=1.0)
    assert run.coordinator.due(1.0) is None
    run.upload("a", 1, 11.0)  # took 10 s: grace 3 x 10 s, then 60 s of patience, from the opening at 1 s
    assert run.coordinator.due(11.0) == pytest.approx(1.0 + 3 * 10.0 + 60.0)


def test_a_late_upload_is_counted_with_its_bytes_and_told_once() -> None:
    run = Driver(plan(deadline_s=30.0))
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.tick(31.0)
    chunks = run.chunks("b", 1, size=30)
    answers = [a for chunk in chunks for a in run.chunk(chunk, 32.0)]
    (reject,) = told(answers, Reject)
    assert (reject.reason, reject.round) == ("late", 1)
    record = only(run.aggregated(33.0), Record).record
    assert (record.accepted, record.late, record.missing) == (("a",), ("b",), ())
    assert record.counts == {"late": len(chunks), "late_bytes": sum(len(encode(c)) for c in chunks)}
    upload = next(t for t in record.tallies["b"] if t.kind == "upload")
    assert (upload.messages, upload.payload_bytes) == (len(chunks), 0)
    size = len(encode(chunks[0]))
    run.chunk(chunks[0], 34.0)  # round 2 is open: nothing is left to say, but it is counted for its own round
    assert told(run.log, Reject) == [reject]
    tally = Tally(direction="up", kind="upload", messages=1, message_bytes=size)
    counts = {"late": 1, "late_bytes": size}
    assert only(run.log, Amend).amendment == Amendment(1, "b", True, tally, counts)


@pytest.mark.parametrize("rounds", [1, 2])
def test_an_upload_that_comes_after_the_record_amends_its_own_round(rounds: int) -> None:
    """Whether the next round is open by then or the run over; the round under way is not charged for it."""
    run = Driver(plan(deadline_s=30.0, rounds=rounds))
    run.start("a", "b")
    (chunk,) = run.chunks("b", 1)
    run.upload("a", 1, 2.0)
    run.tick(31.0)
    assert only(run.aggregated(32.0), Record).record.missing == ("b",)
    amended = only(run.chunk(chunk, 33.0), Amend).amendment
    assert (amended.round, amended.device, amended.late, amended.tally.message_bytes) == (
        1,
        "b",
        True,
        len(encode(chunk)),
    )
    assert run.coordinator.counts == {} and "upload" not in {t.kind for t in run.coordinator.ledger.drain()["b"]}


def test_a_repetition_of_an_accepted_upload_after_the_record_is_not_called_late() -> None:
    run = Driver()
    run.start("a", "b")
    run.play(1, 2.0, "a", "b")
    amended = only(run.upload("b", 1, 3.0), Amend).amendment
    assert (amended.late, amended.counts) == (False, {"stale": 1})


def test_round_0_takes_no_uploads() -> None:
    run = Driver()
    run.start("a", "b")
    assert run.upload("a", 0, 2.0) == [] and run.coordinator.counts == {"foreign": 1}


def test_who_delivered_nothing_is_missing() -> None:
    run = Driver(plan(deadline_s=30.0))
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.tick(31.0)
    assert only(run.aggregated(33.0), Record).record.missing == ("b",)


def test_nothing_in_time_ends_the_run_and_says_why() -> None:
    run = Driver(plan(deadline_s=30.0))
    run.start("a", "b")
    ended = run.tick(31.0)
    assert only(ended, Finish).outcome.reason == "round 1: 0 of 1 upload (none came in time)"
    assert told(ended, RoundState)[0].reason == "round 1: 0 of 1 upload (none came in time)"


@pytest.mark.parametrize(("quorum", "completed"), [(2, True), (3, False)])
def test_a_round_counts_from_its_quorum_on(quorum: int, completed: bool) -> None:
    run = Driver(plan(devices=3, minimum_devices=3, quorum=quorum, deadline_s=30.0))
    run.start("a", "b", "c")
    run.upload("a", 1, 2.0)
    run.upload("b", 1, 2.0)
    end = run.tick(31.0)
    assert [type(a) for a in end if not isinstance(a, Publish)] == ([Aggregate] if completed else [Finish, Note])
    if not completed:
        assert only(end, Finish).outcome.reason == "round 1: 2 of 3 uploads (none came in time)"


def test_partial_participation_asks_exactly_those_who_find_themselves_asked() -> None:
    run = Driver(plan(devices=5, minimum_devices=5, participation=0.4, rounds=6))
    opened = run.start(*"abcde")
    for number in range(1, 7):
        (state,) = [s for s in told(opened, RoundState) if s.state == "open"]
        assert state.cohort is not None
        asked = [d for d in "abcde" if takes_part(state.cohort, 7, number, d)]
        assert asked == list(run.coordinator.collection.instances) and len(asked) == 2
        opened = run.play(number, number + 1.0, *asked)


def test_an_upload_of_a_device_that_was_not_asked_is_refused() -> None:
    run = Driver(plan(devices=2, participation=0.5))
    run.start("a", "b")
    (asked,) = run.coordinator.collection.instances
    other = "b" if asked == "a" else "a"
    (reject,) = told([*run.upload(other, 1, 2.0), *run.upload(other, 1, 2.5)], Reject)
    assert (reject.reason, reject.detail) == ("invalid", "round 1 did not ask this device for an upload")
    record = only(run.play(1, 3.0, asked), Record).record
    assert (record.late, record.missing, record.participants) == ((), (), (asked,))
    assert record.counts == {"unasked": 2}


def test_all_outstanding_offline_are_waited_for_no_longer_than_patience() -> None:
    run = Driver(plan(deadline_s=500.0))
    run.start("a", "b")
    run.presence("b", 2.0, state="lost")
    run.upload("a", 1, 3.0)
    assert run.coordinator.due(3.0) == 63.0
    run.presence("b", 20.0)
    assert run.coordinator.due(20.0) == 501.0
    run.presence("b", 30.0, state="lost")
    assert run.tick(89.9) == []
    assert list(only(run.tick(90.0), Aggregate).uploads) == ["a"]


def test_a_deserted_run_ends_although_the_broker_forgot_everyone() -> None:
    """The broker restarted and no device came back: nobody's will tells it."""
    run = Driver()
    run.start("a", "b")
    run.announce(10.0)
    assert run.coordinator.due(10.0) == 70.0
    assert only(run.tick(70.0), Finish).outcome.completed is False


def test_desertion_at_time_zero_is_as_good_as_later() -> None:
    run = Driver()
    run.start("a", "b", now=0.0)
    run.announce(0.0)
    assert run.coordinator.due(0.0) == 60.0
    assert run.tick(1.0) == []


NOTHING_KEPT = [{}, {"round": 0, "awaits": "acceptance"}]
"""What a process says that goes on from nothing: older devices ask what became of the upload of round 0."""


@pytest.mark.parametrize("says", NOTHING_KEPT)
def test_a_device_that_restarts_in_the_middle_is_asked_again_and_the_study_told_of_its_new_model(says: Any) -> None:
    run = Driver(plan(deadline_s=30.0))
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.chunk(run.chunks("b", 1, size=20)[0], 2.5)
    run.presence("b", 3.0, state="lost")
    answer = run.arrive("b", 4.0, instance="11111111", **says)
    assert told(answer, Welcome)[0].round == 0  # round 1 is yet to come for it
    assert notes(answer) == [
        "round 1: b was started anew and kept nothing: it is asked again, and its model is a new one"
    ]
    assert run.coordinator.due(4.0) == 31.0  # and has no more time than the others
    assert sorted(only(run.upload("b", 1, 5.0), Aggregate).uploads) == ["a", "b"]
    assert only(run.aggregated(6.0), Record).record.accepted == ("a", "b")


@pytest.mark.parametrize("gone", ["lost", "left", None])
def test_a_lone_device_that_restarts_does_not_end_its_run(gone: str | None) -> None:
    """Whether it was killed, stopped in order, or its machine lost power: then the broker has not missed it yet."""
    run = Driver(plan(devices=1, minimum_devices=1, rounds=1))
    run.start("a")
    if gone is not None:
        run.presence("a", 3.0, state=gone)
    run.arrive("a", 4.0, instance="11111111")
    run.tick(10.0)
    assert run.coordinator.outcome is None
    assert [*only(run.upload("a", 1, 11.0), Aggregate).uploads] == ["a"]
    assert only(run.aggregated(12.0), Finish).outcome.completed


def test_a_device_without_which_no_round_counts_has_the_patience_to_come_back() -> None:
    run = Driver(plan(quorum=2, patience_s=20.0))
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    left = run.presence("b", 3.0, state="left")
    assert notes(left) == ["b left", "round 1: it does not count without b, which has 20 s to come back"]
    assert run.tick(22.9) == []
    assert only(run.tick(23.0), Finish).outcome.reason == "round 1: 1 of 2 uploads (none came in time)"


@pytest.mark.parametrize("says", NOTHING_KEPT)
@pytest.mark.parametrize("fate", ["accepted", "rejected"])
def test_a_device_whose_upload_is_decided_begins_with_the_next_round_if_it_kept_nothing(fate: str, says: Any) -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0, CODES if fate == "accepted" else b"\xc1")
    run.presence("a", 3.0, state="lost")
    answer = run.arrive("a", 4.0, instance="11111111", **says)
    assert told(answer, Welcome)[0].round == 1 and not notes(answer)
    assert ("a" in only(run.upload("b", 1, 5.0), Aggregate).uploads) == (fate == "accepted")


@pytest.mark.parametrize("state", ["left", "failed"])
def test_a_device_that_goes_is_not_waited_for(state: str) -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    answer = run.presence("b", 3.0, state=state)
    assert f"b {state}" in notes(answer) and only(answer, Aggregate)


def test_the_whole_cohort_goes_while_others_stay() -> None:
    """Nobody of the cohort is a member any longer when its deadline is asked for."""
    run = Driver(plan(devices=2, participation=0.5, rounds=40))
    run.start("a", "b")
    for number in range(1, 40):
        (asked,) = run.coordinator.collection.instances
        if number > 4:
            break
        run.play(number, float(number), asked)
    ended = run.presence(asked, 50.0, state="failed")
    assert only(ended, Finish).outcome.reason.startswith(f"round {number}: 0 of 1 upload")


def test_accepted_devices_leave_before_the_aggregation_is_done() -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.upload("b", 1, 2.0)
    run.presence("a", 3.0, state="left")
    run.presence("b", 3.0, state="left")
    assert only(run.aggregated(4.0), Finish).outcome.reason == "round 2: no device is left"


BAD: dict[str, object] = {
    "NaN": {"latents": np.array([[0, np.nan]], np.float32)},
    "infinity": {"latents": np.array([[0, -np.inf]], np.float32)},
    "wrong width": {"latents": np.zeros((3, 3), np.float32)},
    "zero rows": {"latents": np.zeros((0, 2), np.float32)},
    "too many rows": {"latents": np.zeros((4, 2), np.float32)},
    "too many bytes": {"latents": np.zeros((3000, 2), np.float32)},
    "float64": {"latents": np.zeros((1, 2))},
    "one dimension": {"latents": np.zeros(2, np.float32)},
    "another name": {"codes": np.zeros((1, 2), np.float32)},
    "a name too many": CODES | {"more": np.zeros(1, np.float32)},
    "nothing": {},
    "no arrays": b"\xc0",
    "no msgpack": b"\xc1\xc1\xc1",
    "a shape beyond numpy": encode_arrays(CODES).replace(b"\x92\x03\x02", b"\x94\x00" + b"\xce\x80\x00\x00\x00" * 3),
}


@pytest.mark.parametrize("flaw", BAD)
def test_an_unusable_upload_is_refused_with_its_reason_and_the_round_goes_on(flaw: str) -> None:
    run = Driver()
    run.start("a", "b")
    refused = run.upload("a", 1, 2.0, BAD[flaw])  # type: ignore[arg-type]
    (reject,) = told(refused, Reject)
    assert (reject.reason, reject.round) == ("invalid", 1) and reject.detail
    assert any("upload of a refused" in note for note in notes(refused))
    run.upload("a", 1, 2.5)  # a second try of the same round is not read
    assert list(only(run.upload("b", 1, 3.0), Aggregate).uploads) == ["b"]
    record = only(run.aggregated(4.0), Record).record
    assert (record.accepted, record.rejected) == (("b",), ("a",))


@pytest.mark.parametrize(
    "garbage", [b"\xc1", b"\x80", b"x" * 300_000, b"\x81\xa1v\x02", b"\xdd\xff\xff\xff\xff"], ids=lambda g: repr(g[:6])
)
def test_a_malformed_chunk_is_counted_against_its_device_and_refused(garbage: bytes) -> None:
    run = Driver()
    run.start("a", "b")
    assert [r.reason for r in told(run.send(topics.upload(RUN, "a", 1, 0), garbage, 2.0), Reject)] == ["invalid"]
    assert run.coordinator.counts["malformed"] == 1
    record = only(run.play(1, 3.0, "b"), Record).record
    assert Tally(direction="up", kind="ignored", messages=1, message_bytes=len(garbage)) in record.tallies["a"]


def test_an_upload_in_the_name_of_another_device_is_refused() -> None:
    run = Driver()
    run.start("a", "b")
    (chunk,) = run.chunks("b", 1)
    answer = run.send(topics.upload(RUN, "a", 1, 0), chunk, 2.0)
    assert [r.detail for r in told(answer, Reject)] == ["a message of 'b' on a topic of 'a'"]
    assert list(only(run.upload("b", 1, 3.0), Aggregate).uploads) == ["b"]


def test_chunks_of_rounds_to_come_and_of_strangers_are_foreign() -> None:
    run = Driver()
    run.start("a", "b")
    assert run.upload("a", 2, 2.0) == [] and run.upload("stranger", 1, 2.0) == []
    assert run.coordinator.counts == {"foreign": 2}


def test_chunks_of_a_refused_upload_that_come_after_the_close_are_not_told_again() -> None:
    run = Driver()
    run.start("a", "b")
    run.send(topics.upload(RUN, "a", 1, 0), b"\xc1", 2.0)
    run.upload("b", 1, 3.0)
    assert run.upload("a", 1, 4.0) == []
    assert only(run.aggregated(5.0), Record).record.late == ()


def test_a_message_that_overtakes_the_tick_in_which_a_name_is_given_away_does_not_end_the_round() -> None:
    """What is due then is an answer of the device that holds the name, not the uploads of the round."""
    run = Driver(plan(devices=3, quorum=1, minimum_devices=3))
    run.start("a", "b", "c")
    run.arrive("b", 2.0, instance="11111111")  # the holder is asked, and does not answer
    due = run.coordinator.members.answer_due_s
    assert due is not None
    assert not [action for action in run.upload("a", 1, due + 0.1) if isinstance(action, Aggregate)]
    assert run.coordinator.collection is not None and run.coordinator.collection.is_open
