"""What the server says again to a device that asks, because a message or its connection was lost."""

import numpy as np
from server.driver import (
    RESULT,
    RUN,
    Accept,
    Driver,
    RoundState,
    Welcome,
    plan,
    told,
)

from broker_server.methods.base import Aggregate as Aggregated
from broker_server.rounds.actions import Accepted, Publish
from edge_client.protocol import topics
from edge_client.protocol.codec import encode_arrays
from edge_client.protocol.messages import Chunk


def test_a_lost_acceptance_is_asked_for_and_given_again() -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    (welcome,) = told(run.join("a", 3.0, round=1, awaits="acceptance"), Welcome)
    assert (welcome.standing.round, welcome.standing.state) == (1, "accepted")
    again = run.upload("a", 1, 4.0)
    assert len(told(again, Accept)) == 1 and not [a for a in again if isinstance(a, Accepted)]
    assert run.coordinator.counts["duplicate"] == 1


def test_who_asks_in_the_middle_of_an_upload_hears_what_is_missing() -> None:
    run = Driver()
    run.start("a", "b")
    chunks = run.chunks("a", 1, size=10)
    standing = told(run.join("a", 2.0, round=1, awaits="acceptance"), Welcome)[0].standing
    assert (standing.state, standing.missing) == ("unseen", ())
    for index in (3, 0):
        run.chunk(chunks[index], 2.0)
    standing = told(run.join("a", 3.0, round=1, awaits="acceptance"), Welcome)[0].standing
    assert (standing.state, standing.missing) == ("partial", tuple({*range(len(chunks))} - {0, 3}))


def test_the_fate_of_the_round_before_is_still_known() -> None:
    run = Driver(plan(deadline_s=30.0))
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.tick(31.0)
    run.aggregated(32.0)
    states = {
        device: told(run.join(device, 33.0, round=1, awaits="acceptance"), Welcome)[0].standing.state for device in "ab"
    }
    assert states == {"a": "accepted", "b": "closed"}


def test_a_broadcast_that_passed_by_is_sent_to_that_device_alone() -> None:
    run = Driver(plan(rounds=3))
    run.start("a", "b")
    waiting = run.join("a", 2.0, round=1, awaits="broadcast")
    assert told(waiting, Welcome)[0].standing.state == "pending"
    run.play(1, 3.0, "a", "b")
    caught = run.join("a", 4.0, round=1, awaits="broadcast")
    assert told(caught, Welcome)[0].standing.state == "follows"
    chunks = told(caught, Chunk)
    assert {a.topic for a in caught if isinstance(a, Publish) and "/bc/" in a.topic} == {
        topics.catch_up(RUN, "a", 1, i) for i in range(len(chunks))
    }
    assert b"".join(c.data for c in chunks) == encode_arrays(RESULT.broadcast)
    run.play(2, 5.0, "a", "b")  # and also when it is no longer the last
    assert told(run.join("a", 6.0, round=1, awaits="broadcast"), Welcome)[0].standing.state == "follows"


def test_a_broadcast_is_cut_for_the_slowest_downlink_that_is_known() -> None:
    """200 bit/s allow 15 s x 200 / 8 = 375 B on the wire at a time, one segment of 52 B header: chunks of 322 B. The
    800 B of centroids and their frame take three; b's rate is unknown and asks for nothing."""
    run = Driver(plan(rounds=1, chunk_size=65_536))
    run.arrive("a", 1.0, down_rate=200.0)
    run.arrive("b", 1.0)
    wide = Aggregated({"centroids": np.zeros((100, 2), np.float32)})
    run.upload("a", 1, 2.0)
    run.upload("b", 1, 2.0)
    sizes = [len(chunk.data) for chunk in told(run.aggregated(3.0, wide), Chunk)]
    assert sizes[:2] == [322, 322] and len(sizes) == 3
    unknown = Driver(plan(rounds=1, chunk_size=65_536))
    unknown.start("a", "b")
    assert len(told(unknown.play(1, 2.0, "a", "b"), Chunk)) == 1


def test_the_last_broadcast_is_owed_to_devices_that_were_cut_off() -> None:
    run = Driver(plan(rounds=1))
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    run.upload("b", 1, 2.0)
    run.presence("a", 2.5, state="lost")
    run.aggregated(3.0)
    run.presence("b", 4.0, state="left")
    assert not run.coordinator.all_gone
    assert told(run.arrive("a", 5.0, round=1, awaits="broadcast"), Welcome)[0].standing.state == "follows"
    run.presence("a", 6.0, state="left")
    assert run.coordinator.all_gone


def test_a_run_that_failed_has_no_broadcast_to_wait_for() -> None:
    run = Driver()
    run.start("a", "b")
    run.coordinator.fail("interrupted", 2.0)
    assert told(run.join("a", 3.0, round=1, awaits="broadcast"), Welcome)[0].standing.state == "gone"


def test_a_new_connection_announces_where_the_run_stands() -> None:
    run = Driver(plan(deadline_s=30.0))
    (waiting,) = told(run.announce(0.0), RoundState)
    run.start("a", "b")
    (opened,) = told(run.announce(5.0), RoundState)
    assert (waiting.state, opened.state, opened.round, opened.deadline_s) == ("waiting", "open", 1, 30.0)
    assert not run.online  # until they say so
    run.presence("a", 6.0)
    assert run.online == ("a",)
