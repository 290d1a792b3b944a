"""A device that asks, claims or reports without end costs the server neither memory nor its run."""

from server.driver import LATENT, RUN, Chunk, Driver, Publish, notes, plan, told

from broker_server.rounds.members import FEWEST_NAMES
from edge_client.protocol import topics
from edge_client.protocol.messages import MAX_CHUNKS, Join, Reject, Telemetry, Welcome


def test_a_broadcast_that_is_asked_for_without_end_is_held_once_and_sent_a_hundred_times() -> None:
    run = Driver()
    run.start("a", "b")
    run.play(1, 2.0, "a", "b")
    answers = [run.join("a", 3.0, round=1, awaits="broadcast") for _ in range(150)]
    sent = [action for answer in answers for action in answer if isinstance(action, Publish) and "/bc/" in action.topic]
    chunks = len(told(answers[0], Chunk))
    assert chunks > 1 and len(sent) == 102 * chunks  # the first time costs nothing, and the last excludes
    assert len({id(action.payload) for action in sent}) == chunks
    (note,) = [note for answer in answers for note in notes(answer) if "excluded" in note]
    assert note == "a is excluded from round 2: more than 100 messages of no use (101 asked_again)"


def test_whoever_asks_once_a_round_is_of_no_less_use() -> None:
    run = Driver(plan(rounds=4, rubbish_limit=1))
    run.start("a", "b")
    for round in (1, 2, 3):
        run.play(round, 2.0 * round, "a", "b")
        assert told(run.join("a", 2.0 * round + 1, round=round, awaits="broadcast"), Chunk)
    assert not [note for note in notes(run.log) if "excluded" in note]


def test_an_upload_of_which_a_chunk_is_here_is_told_of_a_hundred_times() -> None:
    """Which chunks are missing takes three bytes for each."""
    run = Driver(plan(rubbish_limit=9))
    run.start("a", "b")
    run.chunk(run.chunks("a", 1, size=20)[0], 2.0)
    answers = [run.join("a", 3.0, round=1, awaits="acceptance") for _ in range(50)]
    states = [welcome.standing.state for answer in answers for welcome in told(answer, Welcome)]
    assert states == ["partial"] * 11
    assert "9 messages of no use (10 asked_again)" in notes(answers[10])[0]


def test_records_beyond_number_allow_no_flood() -> None:
    """An upload has 65,536 chunks at most, whatever a device claims to have."""
    run = Driver(plan(devices=3))
    run.start("b", "c")
    run.presence("a", 1.0)
    claim = Join(**run.head("a"), instance="00000000", samples=2**32, input_dim=5)
    run.send(topics.join(RUN, "a"), claim, 1.0)
    conduct = run.coordinator._conduct
    claimed = int(0.3 * 2**32) * LATENT * 4 // 256
    assert run.coordinator.members.joined["a"].samples == 2**32 and claimed > 100 * MAX_CHUNKS
    for _ in range(1000 + 2 * MAX_CHUNKS):
        conduct.message("a", is_chunk=True)
    assert conduct.newly_excluded() == ()
    conduct.message("a", is_chunk=True)
    assert [device for device, _ in conduct.newly_excluded()] == ["a"]


def test_names_without_end_are_not_answered_without_end() -> None:
    run = Driver()
    run.start("a")
    answers = [run.join(f"invented-{number}", 2.0, width=9) for number in range(3 * FEWEST_NAMES)]
    refused = [r for answer in answers for r in told(answer, Reject) if "too many device names" in r.detail]
    assert len(refused) == FEWEST_NAMES and answers[-1] == []


def test_a_report_that_no_study_has_room_for_is_rubbish_and_nothing_else() -> None:
    """SQLite takes NaN for nothing, where a stage must have its seconds."""
    run = Driver()
    run.start("a", "b")
    report = Telemetry(**run.head("a", 1), outcome="completed", spent_s={"upload": float("nan")}, tallies=(),
                       evaluations=(), ignored={}, state_sha256="")  # fmt: skip
    assert run.send(topics.telemetry(RUN, "a"), report, 2.0) == []
    assert run.coordinator.counts == {"malformed": 1}
