"""What both brokers must do with messages (MQTT 3.1.1 chapters 3.3 and 4); each test runs against each."""

import asyncio

import aiomqtt
import pytest
from brokers import RunningBroker, connected

from broker_server.broker import packets as mqtt


@pytest.mark.parametrize("qos", [0, 1])
async def test_300_messages_arrive_once_and_in_order(broker: RunningBroker, qos: int) -> None:
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        assert await reader.subscribe(("t/#", qos)) == (qos,)
        for number in range(300):
            await writer.publish("t/x", str(number).encode(), qos)
        assert [int(m.payload) for m in await reader.take(300)] == list(range(300))
        await reader.silent()


async def test_500_pipelined_messages_arrive_once_and_in_order(broker: RunningBroker) -> None:
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        await reader.subscribe(("t", 1))
        for number in range(1, 501):
            writer.write(mqtt.Publish("t", str(number).encode(), 1, packet_id=number))
        assert [(await writer.expect(mqtt.PubAck)).packet_id for _ in range(500)] == list(range(1, 501))
        assert [int(m.payload) for m in await reader.take(500)] == list(range(1, 501))
        await reader.silent()


async def test_aiomqtt_clients_exchange_300_messages(broker: RunningBroker) -> None:
    async with (
        aiomqtt.Client(broker.host, broker.port, identifier="r") as reader,
        aiomqtt.Client(broker.host, broker.port, identifier="w") as writer,
    ):
        await reader.subscribe("t", qos=1)
        async with asyncio.TaskGroup() as group:
            for number in range(300):
                group.create_task(writer.publish("t", str(number), qos=1))
        got = []
        async for message in reader.messages:
            got.append(int(message.payload))
            if len(got) == 300:
                break
        assert got == list(range(300))


@pytest.mark.parametrize(("published", "subscribed"), [(p, s) for p in (0, 1) for s in (0, 1)])
async def test_delivered_qos_is_the_smaller_one(broker: RunningBroker, published: int, subscribed: int) -> None:
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        await reader.subscribe(("t", subscribed))
        await writer.publish("t", b"x", published)
        (message,) = await reader.take(1)
        assert message.qos == min(published, subscribed)


async def test_qos2_message_with_repeats_is_delivered_once(broker: RunningBroker) -> None:
    """A repeat before PUBREL, as after a lost PUBREC, is no new message; the same id after PUBREL is."""
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        await reader.subscribe(("t", 1))
        for dup in (False, True):
            writer.write(mqtt.Publish("t", b"once", 2, dup=dup, packet_id=7))
            assert (await writer.expect(mqtt.PubRec)).packet_id == 7
        for _ in range(2):
            writer.write(mqtt.PubRel(7))
            assert (await writer.expect(mqtt.PubComp)).packet_id == 7
        await writer.publish("t", b"next", 2)
        writer.write(mqtt.Publish("t", b"again", 2, packet_id=7))
        await writer.expect(mqtt.PubRec)
        writer.write(mqtt.PubRel(7))
        await writer.expect(mqtt.PubComp)
        assert [m.payload for m in await reader.take(3)] == [b"once", b"next", b"again"]
        await reader.silent()


async def test_overlapping_subscriptions_deliver_once(broker: RunningBroker) -> None:
    """Section 3.3.5 demands the maximum QoS; mosquitto 2.0.11 takes that of one of the matching filters."""
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        await reader.subscribe(("a/b", 0), ("a/+", 1), ("a/#", 0))
        await writer.publish("a/b", b"x", 1)
        (message,) = await reader.take(1)
        assert message.qos == 1 or broker.kind == "mosquitto"
        await reader.silent()


async def test_own_messages_come_back(broker: RunningBroker) -> None:
    async with connected(broker, "self") as client:
        await client.subscribe(("t", 0))
        await client.publish("t", b"echo", 0)
        assert [m.payload for m in await client.take(1)] == [b"echo"]


async def test_retained_is_set_replaced_flagged_and_cleared(broker: RunningBroker) -> None:
    async with connected(broker, "writer") as writer:
        await writer.publish("r/1", b"old", 1, retain=True)
        await writer.publish("r/1", b"new", 1, retain=True)
        await writer.publish("r/2", b"zero", 0, retain=True)
        await writer.publish("r/3", b"plain", 1)
        async with connected(broker, "late") as late:
            await late.subscribe(("r/+", 1))
            kept = {(m.topic, m.payload, m.retain, m.qos) for m in await late.take(2)}
            assert kept == {("r/1", b"new", True, 1), ("r/2", b"zero", True, 0)}
            await late.silent()
            await writer.publish("r/1", b"live", 1, retain=True)
            (live,) = await late.take(1)
            assert (live.payload, live.retain) == (b"live", False)  # section 3.3.1.3: the flag says "was kept"
            await writer.publish("r/1", b"", 1, retain=True)
            (cleared,) = await late.take(1)
            assert (cleared.payload, cleared.retain) == (b"", False)
        async with connected(broker, "later") as later:
            await later.subscribe(("r/#", 0))
            assert [(m.topic, m.qos) for m in await later.take(1)] == [("r/2", 0)]
            await later.silent()


async def test_subscribing_again_replaces_and_repeats_what_is_retained(broker: RunningBroker) -> None:
    """Section 3.8.4."""
    async with connected(broker, "c") as client:
        await client.publish("r", b"kept", 1, retain=True)
        await client.subscribe(("r", 1))
        assert [m.qos for m in await client.take(1)] == [1]
        await client.subscribe(("r", 0))
        assert [m.qos for m in await client.take(1)] == [0]
        await client.publish("r", b"x", 0)
        assert [m.qos for m in await client.take(1)] == [0]
        await client.silent()


async def test_stranger_without_subscription_gets_no_retained_message(broker: RunningBroker) -> None:
    async with connected(broker, "a") as owner:
        await owner.subscribe(("r", 1))
        await owner.publish("r", b"kept", 0, retain=True)
        await owner.take(1)
        async with connected(broker, "b") as stranger:
            await stranger.silent()


@pytest.mark.parametrize(
    ("filter_", "matched"),
    [
        ("a/b", {"a/b"}),
        ("a/+", {"a/b", "a/"}),
        ("a/#", {"a", "a/b", "a/", "a/b/c"}),
        ("+", {"a"}),
        ("+/+", {"a/b", "a/", "/a"}),
        ("/+", {"/a"}),
        ("#", {"a", "a/b", "a/", "a/b/c", "/a"}),
        ("+/b/#", {"a/b", "a/b/c"}),
    ],
)
async def test_wildcards(broker: RunningBroker, filter_: str, matched: set[str]) -> None:
    """The examples of section 4.7.1, live and retained."""
    topics = ["a", "a/b", "a/", "a/b/c", "/a"]
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        await reader.subscribe((filter_, 0))
        for topic in topics:
            await writer.publish(topic, b"live", 0, retain=True)
        await writer.silent()  # all of it is routed
        assert {m.topic for m in await reader.take(len(matched))} == matched
        await reader.silent()
        async with connected(broker, "late") as late:
            await late.subscribe((filter_, 0))
            assert {m.topic for m in await late.take(len(matched))} == matched
            await late.silent()


async def test_unsubscribe_stops_delivery_and_unknown_filters_are_no_error(broker: RunningBroker) -> None:
    async with connected(broker, "c") as client:
        await client.subscribe(("a", 0), ("b", 0))
        client.write(mqtt.Unsubscribe(9, ("a", "never/subscribed")))
        assert (await client.expect(mqtt.UnsubAck)).packet_id == 9
        await client.publish("a", b"")
        await client.publish("b", b"")
        assert [m.topic for m in await client.take(1)] == ["b"]
        await client.silent()


async def test_each_subscription_of_a_packet_is_answered_in_order(broker: RunningBroker) -> None:
    """QoS 2 may be granted as less (section 3.8.4); the embedded broker grants 1."""
    async with connected(broker, "c") as client:
        granted = await client.subscribe(("a", 0), ("b", 1), ("c", 2))
        assert granted == (0, 1, 1 if broker.kind == "embedded" else 2)


@pytest.mark.parametrize("size", [1_400_000, 5_000_000, 20_000_000])
async def test_large_payloads_arrive_whole(broker: RunningBroker, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with connected(broker, "reader") as reader, connected(broker, "writer") as writer:
        await reader.subscribe(("t", 1))
        await asyncio.gather(writer.publish("t", payload, 1), message := asyncio.ensure_future(reader.take(1)))
        assert message.result()[0].payload == payload


async def test_a_subscriber_that_does_not_read_does_not_stop_the_others(broker: RunningBroker) -> None:
    """400 x 64 KiB, more than any socket buffers."""
    payload = bytes(65_536)
    async with (
        connected(broker, "stalled", receive_buffer=8_192, keepalive=0) as stalled,
        connected(broker, "reader") as reader,
        connected(broker, "writer") as writer,
    ):
        await stalled.subscribe(("t", 1))
        stalled.writer.transport.pause_reading()
        await reader.subscribe(("t", 1))
        taking = asyncio.create_task(reader.take(400))
        for _ in range(400):
            await writer.publish("t", payload, 1)
        assert sum(len(m.payload) for m in await taking) == 400 * 65_536
