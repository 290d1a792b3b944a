"""The server's byte ledgers, worked out by hand: what counts once, what counts again, and for whom."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from server.driver import CODES, RESULT, RUN, Driver, Record, only, plan

from broker_server.rounds.actions import Observe, Publish
from broker_server.rounds.ledger import Ledger
from edge_client.protocol import topics
from edge_client.protocol.codec import encode, encode_arrays
from edge_client.protocol.messages import Chunk, Tally, Telemetry


def test_the_ledger_of_a_round_by_hand() -> None:
    """Device a: presence, join and an upload of two chunks, one of them twice. Up: control 2 messages; upload 3
    messages with 24 B of payload, once. Down: its welcome, open, its acceptance, closed and, of the next round, open
    count as control when they are sent; the broadcast (16 + 8 B of payload) comes in ceil(size / 64) chunks."""
    run = Driver()
    sizes = {"up": 0, "upload": 0}
    for device in "ab":
        run.arrive(device, 1.0)
    first, second = run.chunks("a", 1, size=40)
    for chunk in (first, first, second):
        run.chunk(chunk, 2.0)
        sizes["upload"] += len(encode(chunk))
    run.upload("b", 1, 3.0)
    record = only(run.aggregated(4.0), Record).record
    (up_control, up_upload) = [t for t in record.tallies["a"] if t.direction == "up"]
    assert (up_control.kind, up_control.messages, up_control.payload_bytes) == ("control", 2, 0)
    assert (up_upload.messages, up_upload.payload_bytes, up_upload.message_bytes) == (3, 24, sizes["upload"])
    down = {t.kind: t for t in record.tallies["a"] if t.direction == "down"}
    broadcast = [a for a in run.log if isinstance(a, Publish) and "/bc/" in a.topic]
    assert len(broadcast) == -(-len(encode_arrays(RESULT.broadcast)) // 64)
    assert (down["broadcast"].messages, down["broadcast"].payload_bytes) == (len(broadcast), 24)
    assert down["broadcast"].message_bytes == sum(len(a.payload) for a in broadcast)
    mine = [a for a in run.log if isinstance(a, Publish) and ("/dn/a/" in a.topic or a.topic.endswith("/round"))]
    control = [a for a in mine if a.topic.endswith(("welcome", "accept")) or a.topic.endswith("/round")][:-1]
    assert down["control"].message_bytes == sum(len(a.payload) for a in control)
    assert record.counts == {"duplicate": 1}


def test_telemetry_is_passed_on_and_counted_apart() -> None:
    run = Driver()
    run.start("a", "b")
    message = Telemetry(**run.head("a", 1), outcome="completed", spent_s={"upload": 1.0}, tallies=(), evaluations=(),
                        ignored={}, state_sha256="")  # fmt: skip
    assert only(run.send(topics.telemetry(RUN, "a"), message, 2.0), Observe).telemetry == message
    assert ("up", "telemetry") in {(t.direction, t.kind) for t in run.coordinator.ledger.drain()["a"]}


def test_a_message_to_all_counts_once_for_each_device_it_is_meant_for() -> None:
    ledger = Ledger()
    ledger.sent(["b", "a"], "broadcast", 100, 24)
    ledger.sent(["a"], "broadcast", 50)
    assert ledger.drain() == {
        "a": (Tally(direction="down", kind="broadcast", messages=2, payload_bytes=24, message_bytes=150),),
        "b": (Tally(direction="down", kind="broadcast", messages=1, payload_bytes=24, message_bytes=100),),
    }
    assert ledger.drain() == {}


def test_repetitions_cost_message_bytes_but_no_payload() -> None:
    """The body comes three times, the third after the round closed; its 24 B of codes are payload once."""
    run = Driver()
    run.start("a", "b")
    (chunk,) = run.chunks("a", 1)
    run.chunk(chunk, 2.0)
    run.chunk(chunk, 2.0)
    run.upload("b", 1, 3.0)
    run.chunk(chunk, 3.5)
    record = only(run.aggregated(4.0), Record).record
    (upload,) = [t for t in record.tallies["a"] if t.kind == "upload"]
    assert (upload.messages, upload.payload_bytes, upload.message_bytes) == (3, 24, 3 * len(encode(chunk)))
    assert record.counts == {"duplicate": 2} and record.late == ()


def test_an_upload_that_is_refused_costs_messages_and_gives_no_payload() -> None:
    run = Driver()
    run.start("a", "b")
    run.upload("a", 1, 2.0, {"latents": CODES["latents"].astype("f8")})
    record = only(run.play(1, 3.0, "b"), Record).record
    (upload,) = [t for t in record.tallies["a"] if t.kind == "upload"]
    assert upload.messages == 1 and upload.payload_bytes == 0 and upload.message_bytes > 48


def test_a_broadcast_is_not_counted_for_who_was_not_asked_but_its_catch_up_for_who_asks() -> None:
    run = Driver(plan(participation=0.5))
    run.start("a", "b")
    assert run.coordinator.collection is not None
    (asked,) = run.coordinator.collection.instances
    (other,) = {"a", "b"} - {asked}
    record = only(run.play(1, 2.0, asked), Record).record
    assert {d: [t.payload_bytes for t in record.tallies[d] if t.kind == "broadcast"] for d in "ab"} == {
        asked: [24], other: [],
    }  # fmt: skip
    sent = run.join(asked, 3.0, round=1, awaits="broadcast")
    (again,) = [t for t in run.coordinator.ledger.drain()[asked] if t.kind == "broadcast"]
    bodies = [a.payload for a in sent if isinstance(a, Publish) and "/bc/" in a.topic]
    assert (again.messages, again.payload_bytes, again.message_bytes) == (len(bodies), 24, sum(map(len, bodies)))


FOREIGN: dict[str, Callable[[Chunk], Chunk]] = {
    "of an older server": lambda chunk: replace(chunk, run="hand.00000000"),
    "of a round to come": lambda chunk: replace(chunk, round=2),
    "under another index than its topic's": lambda chunk: replace(chunk, index=1, chunks=2),
}


@pytest.mark.parametrize("whose", FOREIGN)
def test_what_arrives_and_is_of_no_use_is_in_the_ledger_as_ignored(whose: str) -> None:
    run = Driver()
    run.start("a", "b")
    run.coordinator.ledger.drain()
    chunk = FOREIGN[whose](run.chunks("a", 1)[0])
    index = 0 if "index" in whose else chunk.index
    assert run.send(topics.upload(RUN, "a", chunk.round, index), chunk, 2.0) == []
    assert run.coordinator.counts == {"foreign": 1}
    assert run.coordinator.ledger.drain() == {
        "a": (Tally(direction="up", kind="ignored", messages=1, message_bytes=len(encode(chunk))),)
    }
