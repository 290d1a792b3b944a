"""What a device hears of rounds that went by while it was away."""

import numpy as np
import pytest
from server.driver import CODES, RESULT, Aggregated, Chunk, Driver, Welcome, plan, told

from broker_server.rounds.collection import over
from broker_server.rounds.past import MOST_BYTES, NAME_BYTES, Broadcast, Past
from broker_server.study.start import Start
from edge_client.protocol.codec import Arrays, decode_arrays


def centroids(round: int) -> Arrays:
    return {"centroids": np.full((2, 2), round, np.float32), "support": np.ones(2, np.float32)}


def one_that_delivers_and_misses_two_rounds() -> tuple[Driver, str]:
    """One of four takes part in each round; the first of them dies before its broadcast, and is drawn for none of the
    next three. Returns the run in round 4, and its name."""
    for seed in range(100):
        run, asked = Driver(plan(devices=4, minimum_devices=4, participation=0.25, rounds=30, seed=seed)), []
        run.start(*"abcd")
        for round in (1, 2, 3):
            asked += run.coordinator.collection.instances
            run.upload(asked[-1], round, float(round))
            if round == 1:
                run.presence(asked[0], 1.5, state="lost")
            run.aggregated(float(round) + 0.5, Aggregated(centroids(round)))
        if asked[0] not in (*asked[1:], *run.coordinator.collection.instances):
            return run, asked[0]
    raise AssertionError("every seed draws it again")


@pytest.mark.parametrize("kept", [True, False])
def test_a_device_that_delivered_gets_the_broadcast_of_its_own_round_rounds_later(kept: bool) -> None:
    """As a new process that kept its state it asks for the fate of its upload first."""
    run, away = one_that_delivers_and_misses_two_rounds()
    instance = "11111111" if kept else "00000000"
    if kept:
        (welcome,) = told(run.arrive(away, 50.0, instance=instance, round=1, awaits="acceptance"), Welcome)
        assert welcome.standing.state == "accepted"
    answer = run.arrive(away, 51.0, instance=instance, round=1, awaits="broadcast")
    assert told(answer, Welcome)[-1].standing.state == "follows"
    body = b"".join(chunk.data for chunk in told(answer, Chunk))
    assert {chunk.round for chunk in told(answer, Chunk)} == {1}
    np.testing.assert_array_equal(decode_arrays(body)["centroids"], centroids(1)["centroids"])


def test_what_a_broadcast_takes_is_told_from_the_last_whatever_is_sent_again() -> None:
    """After a stop, the broadcast of the round before it is cut anew for whoever lacks it: here a larger one."""
    start = Start(1, {"centroids": np.zeros((40, 2), np.float32)}, 100.0, 40, accepted=("a", "b"))
    run = Driver(plan(life=1, start=start, rounds=4))
    run.join("a", 101.0, round=1, awaits="broadcast", run=run.plan.name)
    before = run.coordinator._herald.broadcast_bytes
    assert before > 320  # until there is another, it is the last

    run = Driver(plan(life=1, start=start, rounds=4))
    for device in "ab":
        run.arrive(device, 101.0, run=run.plan.name)
    collection = run.coordinator.collection
    assert collection is not None and collection.round == 2
    run.coordinator._herald.close(collection, (), (), RESULT.travels)
    last = run.coordinator._herald.broadcast_bytes
    assert 0 < last < before
    assert told(run.join("a", 103.0, round=1, awaits="broadcast", run=run.plan.name), Chunk)
    assert run.coordinator._herald.broadcast_bytes == last


def test_where_all_hear_all_only_the_last_broadcast_is_of_use() -> None:
    past = Past(latest_only=True)
    for round in (1, 2, 3):
        past.add(over(round, "ab"), Broadcast((bytes(2 * MOST_BYTES),), 1, b"", 1))
    assert [past.repeats(n) for n in (1, 2, 3, 4)] == [False, False, True, False]
    assert [past.broadcast(n) is not None for n in (1, 2, 3)] == [False, False, True]
    assert [past.round(n) is not None for n in (1, 2, 3)] == [True, True, True]  # whose uploads were accepted is small


def test_of_whose_uploads_were_accepted_as_much_is_kept_as_has_room() -> None:
    past, names = Past(latest_only=True), [f"d{number}" for number in range(1000)]
    for round in range(1, 101):
        past.add(over(round, names), Broadcast((b"x",), 1, b"", 1))
    held = [n for n in range(1, 101) if past.round(n) is not None]
    assert held == list(range(100 - MOST_BYTES // (1000 * NAME_BYTES), 101))


def test_what_is_kept_is_bounded_whatever_is_broadcast() -> None:
    past, chunk = Past(latest_only=False), bytes(100_000)
    for round in range(1, 101):
        past.add(over(round, "ab"), Broadcast((chunk,), 1, b"", 1))
    held = [n for n in range(1, 101) if past.broadcast(n) is not None]
    assert held == list(range(100 - MOST_BYTES // (100_000 + 2 * NAME_BYTES), 101))
    past.add(over(101, "ab"), Broadcast((bytes(3 * MOST_BYTES),), 1, b"", 1))
    assert past.broadcast(101) is not None  # the last, however large
    past.add(over(102, "ab"), Broadcast((chunk,), 1, b"", 1))
    assert [n for n in range(1, 103) if past.round(n) is not None] == [102]


def test_where_all_hear_all_an_earlier_broadcast_is_gone_and_the_fate_of_its_uploads_is_not() -> None:
    run = Driver(plan(rounds=5))
    run.coordinator._past._latest_only = True
    run.start("a", "b")
    for round in (1, 2):
        for device in "ab":
            run.upload(device, round, float(round), CODES)
        run.aggregated(round + 0.5)
    (welcome,) = told(run.join("a", 9.0, round=1, awaits="broadcast"), Welcome)
    assert welcome.standing.state == "gone"
    (welcome,) = told(run.join("a", 9.0, round=1, awaits="acceptance"), Welcome)
    assert welcome.standing.state == "accepted"
