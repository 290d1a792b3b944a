"""A server in a later life: what it tells devices that knew the one before, and devices that go on themselves."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from server.driver import (
    NAME,
    RUN,
    Accept,
    Aggregate,
    Chunk,
    Driver,
    Finish,
    RoundState,
    Welcome,
    only,
    plan,
    told,
)

from broker_server.study.start import Start, load_start, save_start
from edge_client.protocol import topics
from edge_client.protocol.codec import Arrays, decode_arrays, encode
from edge_client.protocol.messages import Presence

BROADCAST: Arrays = {"centroids": np.ones((2, 2), np.float32), "support": np.ones(2, np.float32)}
PACKED: Arrays = {"centroids": np.full((2, 2), 7, np.int8)}


def later(completed: int = 1, rounds: int = 3, **fields: object) -> Driver:
    start = Start(completed, BROADCAST, 100.0, 40, {"a": 3.0}, input_dim=5)
    return Driver(plan(life=1, start=start, rounds=rounds, **fields))


def test_devices_of_the_life_before_are_heard_and_answered_in_this_ones_name() -> None:
    run = later()
    old = encode(Presence(**run.head("a", run=NAME), state="online", instance="00000000"))
    run.send(topics.presence(RUN, "a"), old, 101.0)
    (welcome,) = told(run.join("a", 101.0, run=NAME, round=1), Welcome)
    assert (welcome.run, welcome.round) == (f"{NAME}.1", 1)
    assert run.online == ("a",) and not run.coordinator.counts


@pytest.mark.parametrize("name", [f"{RUN}.00000000", f"{RUN}.00000000.1"])
def test_those_of_another_run_of_that_name_are_not(name: str) -> None:
    run = later()
    assert run.join("a", 101.0, run=name) == [] and run.coordinator.counts == {"foreign": 1}


def test_uploads_for_the_life_before_are_foreign_and_pending() -> None:
    """They name that life, and the round is yet to be called again."""
    run = later(devices=3)
    run.arrive("a", 101.0)
    (chunk,) = run.chunks("a", 2)
    assert run.chunk(chunk, 102.0) == []
    for awaited in ("acceptance", "broadcast"):
        (welcome,) = told(run.join("a", 102.0, round=2, awaits=awaited), Welcome)
        assert welcome.standing.state == "pending" and welcome.round == 1


def test_the_round_under_way_is_called_again_and_takes_the_upload_once_more() -> None:
    run = later()
    opened = [
        *run.arrive("a", 101.0, round=2, awaits="broadcast"),
        *run.arrive("b", 101.0, round=2, awaits="acceptance"),
    ]
    (state,) = told(opened, RoundState)
    assert (state.run, state.state, state.round) == (f"{NAME}.1", "open", 2)
    for device in "ab":
        accepted = [replace_run(chunk) for chunk in run.chunks(device, 2)]
        assert told([a for chunk in accepted for a in run.chunk(chunk, 102.0)], Accept)
    assert sorted(only(run.log, Aggregate).uploads) == ["a", "b"]


def replace_run(chunk: Chunk) -> Chunk:
    return msgspec.structs.replace(chunk, run=f"{NAME}.1")


@pytest.mark.parametrize("packed", [None, PACKED])
def test_the_last_broadcast_is_sent_again_to_who_lacks_it(packed: Arrays | None) -> None:
    start = Start(1, BROADCAST, 100.0, 40, packed=packed)
    run = Driver(plan(life=1, start=start, rounds=3))
    answer = run.join("a", 101.0, round=1, awaits="broadcast")
    (welcome,) = told(answer, Welcome)
    assert welcome.standing.state == "follows"
    body = b"".join(chunk.data for chunk in told(answer, Chunk))
    expected = packed or BROADCAST
    found = decode_arrays(body)
    assert found.keys() == expected.keys() and all(np.array_equal(found[n], expected[n]) for n in expected)


def test_a_run_stopped_between_its_last_round_and_its_end_ends_and_waits_for_who_lacks_the_broadcast() -> None:
    run = later(completed=3)
    ended = run.announce(100.0)
    assert only(ended, Finish).outcome.completed
    assert not run.coordinator.all_gone and run.coordinator.farewell_due(100.0) == 160.0
    answer = run.arrive("a", 101.0, round=3, awaits="broadcast")
    assert [w.standing.state for w in told(answer, Welcome)] == ["follows"] and told(answer, Chunk)
    run.presence("a", 102.0, state="left")
    assert not run.coordinator.all_gone  # b may come yet
    run.arrive("b", 103.0, round=3)
    run.presence("b", 104.0, state="left")
    assert run.coordinator.all_gone


# ---- a device that goes on from what it kept -----------------------------------------------------------------------


def test_a_new_process_that_knows_of_the_round_is_asked_in_place_of_the_old_one() -> None:
    run = Driver()
    run.start("a", "b")
    run.chunk(run.chunks("a", 1, size=20)[0], 2.0)
    run.presence("a", 2.5, state="lost")
    (welcome,) = told(run.arrive("a", 3.0, instance="11111111", round=1, awaits="acceptance"), Welcome)
    assert (welcome.round, welcome.standing.state) == (0, "unseen")  # half an upload of the old process is void
    run.upload("b", 1, 4.0)
    assert run.coordinator.collection is not None and list(run.coordinator.collection.outstanding) == ["a"]
    assert sorted(only(run.upload("a", 1, 5.0), Aggregate).uploads) == ["a", "b"]


def test_one_whose_upload_is_in_hears_so_and_waits_for_the_broadcast() -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.presence("a", 2.5, state="lost")
    (welcome,) = told(run.arrive("a", 3.0, instance="11111111", round=1, awaits="acceptance"), Welcome)
    assert (welcome.round, welcome.standing.state) == (0, "accepted")
    run.upload("b", 1, 4.0)
    run.aggregated(5.0)
    run.presence("a", 5.5, state="lost", instance="11111111")
    (welcome,) = told(run.arrive("a", 6.0, instance="22222222", round=1, awaits="acceptance"), Welcome)
    assert (welcome.round, welcome.standing.state) == (1, "accepted")  # and is asked in round 2 as well
    assert run.coordinator.collection is not None
    assert run.coordinator.collection.instances["a"] == "22222222" and "a" in run.coordinator.collection.outstanding
    assert told(run.join("a", 6.5, instance="22222222", round=1, awaits="broadcast"), Chunk)


def test_one_that_goes_on_from_too_long_ago_makes_no_second_upload() -> None:
    """What it kept is of before round 1, and the upload that is in for round 2 came from a model that is lost."""
    run = Driver()
    run.start("a", "b")
    run.play(1, 2.0, "a", "b")
    run.upload("a", 2, 3.0)
    run.presence("a", 3.5, state="lost")
    (welcome,) = told(run.arrive("a", 4.0, instance="11111111", round=1, awaits="acceptance"), Welcome)
    assert (welcome.round, welcome.standing.state) == (2, "accepted")
    assert sorted(only(run.upload("b", 2, 5.0), Aggregate).uploads) == ["a", "b"]


def test_one_that_was_stopped_kindly_may_come_back_into_the_round() -> None:
    run = Driver(plan(devices=3))
    run.start("a", "b", "c")
    run.presence("a", 2.0, state="left")
    run.arrive("a", 3.0, instance="11111111", round=1, awaits="acceptance")
    run.upload("b", 1, 4.0)
    run.upload("c", 1, 4.0)
    assert sorted(only(run.upload("a", 1, 5.0), Aggregate).uploads) == ["a", "b", "c"]


# ---- what is kept --------------------------------------------------------------------------------------------------


def test_where_a_run_stood_comes_back_with_what_travelled(tmp_path) -> None:
    for round in (1, 2, 3):
        save_start(tmp_path, Start(round, BROADCAST, 12.5, 9, {"a": 1.5}, PACKED, 5))
    back = load_start(tmp_path, 3)
    assert (back.completed, back.seconds, back.seq, back.elapsed_s, back.input_dim) == (3, 12.5, 9, {"a": 1.5}, 5)
    assert back.packed is not None and np.array_equal(back.packed["centroids"], PACKED["centroids"])
    assert sorted(path.name for path in (tmp_path / "rounds").glob("*.packed")) == ["00002.packed", "00003.packed"]
    save_start(tmp_path, replace(back, completed=4, packed=None))
    assert load_start(tmp_path, 4).packed is None
