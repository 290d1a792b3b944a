"""Refusals that both brokers must make: malformed and oversize packets, wrong passwords, foreign topics."""

import aiomqtt
import pytest
from brokers import RunningBroker, connected, open_broker, open_socket

from broker_server.broker import packets as mqtt
from broker_server.broker.limits import Limits

USERS = {"dev-1": "one", "dev-2": "two", "server": "three"}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x30\x05\0\3a/+", id="wildcard in publish"),
        pytest.param(b"\x36\x06\0\1t\0\1x", id="qos 3"),
        pytest.param(b"\x32\x05\0\1t\0\0", id="packet id 0"),
        pytest.param(b"\x30\x04\0\2\xc3\x28", id="not utf-8"),
        pytest.param(b"\x80\x06\0\1\0\1t\0", id="subscribe without its flags"),
        pytest.param(b"\x82\x02\0\1", id="subscribe without filter"),
        pytest.param(b"\x82\x06\0\1\0\1t\3", id="subscribe with qos 3"),
        pytest.param(b"\xf0\x00", id="reserved type"),
        pytest.param(b"\x30\xff\xff\xff\xff\x01", id="remaining length of five bytes"),
    ],
)
async def test_malformed_packets_close_the_connection_and_only_that(broker: RunningBroker, data: bytes) -> None:
    async with connected(broker, "good") as good, connected(broker, "bad") as bad:
        bad.writer.write(data)
        assert await bad.closed() == []
        await good.silent()


async def test_packets_above_the_limit_are_refused_from_their_header(broker_kind: str) -> None:
    async with (
        open_broker(broker_kind, limits=Limits(max_packet_size=100_000)) as broker,
        connected(broker, "reader") as reader,
        connected(broker, "writer") as writer,
    ):
        await reader.subscribe(("t", 0))
        payload = bytes(100_000 - 4 - 3)
        await writer.publish("t", payload)
        assert [len(m.payload) for m in await reader.take(1)] == [len(payload)]
        writer.writer.write(bytes((0x30, 0xFF, 0xFF, 0x7F)) + b"\0\1t")  # the body never comes
        assert await writer.closed() == []
        await reader.silent()


async def test_user_and_password(broker_kind: str) -> None:
    async with open_broker(broker_kind, users=USERS) as broker:
        async with connected(broker, "dev-1", user="dev-1", password=b"one") as client:
            await client.silent()
        for user, password in (("dev-1", b"two"), ("stranger", b"one"), ("dev-1", b""), (None, None)):
            client = await open_socket(broker)
            client.write(mqtt.Connect("x", user=user, password=password))
            (answer,) = await client.closed()
            assert isinstance(answer, mqtt.ConnAck)
            assert answer.code in (mqtt.ConnectCode.BAD_CREDENTIALS, mqtt.ConnectCode.NOT_AUTHORISED)
        with pytest.raises(aiomqtt.MqttError):
            async with aiomqtt.Client(broker.host, broker.port, identifier="x", username="dev-1", password="no"):
                pass


async def test_a_device_reaches_its_own_topics_only(broker_kind: str) -> None:
    """The server sees what a device may write and nothing of what it may not."""
    async with (
        open_broker(broker_kind, users=USERS, rules=True) as broker,
        connected(broker, "server", user="server", password=b"three") as server,
    ):
        await server.subscribe(("gca/v1/#", 1))
        base = "gca/v1/run"
        own = [f"{base}/{name}" for name in ("pres/dev-1", "join/dev-1", "met/dev-1", "up/dev-1/3/0")]
        foreign = [f"{base}/{name}" for name in ("pres/dev-2", "join/dev-2", "up/dev-2/3/0", "round", "bc/3/0")]
        foreign += [f"{base}/dn/dev-1/ctl", "gca/v2/run/up/dev-1/3/0", "other"]
        for topic in foreign:  # mosquitto may close after a denied publish, so each has a connection of its own
            async with connected(broker, "dev-1", user="dev-1", password=b"one") as device:
                device.write(mqtt.Publish(topic, b"", 1, packet_id=1))
                assert await device.next() == mqtt.PubAck(1)
                if broker.kind == "embedded":
                    await device.silent()
        async with connected(broker, "dev-1", user="dev-1", password=b"one") as device:
            for topic in own:
                await device.publish(topic, b"", 1)
        assert [m.topic for m in await server.take(len(own))] == own
        await server.silent()
        if broker.kind == "embedded":
            assert broker.server.counters.dropped == {"publish denied": len(foreign)}


async def test_a_device_reads_its_own_topics_and_those_for_all(broker_kind: str) -> None:
    """The embedded broker says so in SUBACK; mosquitto grants foreign filters and delivers nothing."""
    base = "gca/v1/run"
    readable = [f"{base}/round", f"{base}/bc/#", f"{base}/dn/dev-1/#", f"{base}/pres/dev-1"]
    foreign = [f"{base}/dn/dev-2/#", f"{base}/dn/+/#", f"{base}/up/#", f"{base}/pres/+", "gca/v1/#", "#"]
    async with (
        open_broker(broker_kind, users=USERS, rules=True) as broker,
        connected(broker, "server", user="server", password=b"three") as server,
        connected(broker, "dev-1", user="dev-1", password=b"one") as device,
    ):
        assert await device.subscribe(*((filter_, 1) for filter_ in readable)) == (1,) * len(readable)
        codes = await device.subscribe(*((filter_, 1) for filter_ in foreign))
        if broker.kind == "embedded":
            assert codes == (mqtt.SUBSCRIPTION_REFUSED,) * len(foreign)
        hidden = [f"{base}/dn/dev-2/ctl", f"{base}/up/dev-2/3/0", f"{base}/pres/dev-2", f"{base}/join/dev-1"]
        shown = [f"{base}/round", f"{base}/bc/3/0", f"{base}/dn/dev-1/ctl", f"{base}/pres/dev-1"]
        for topic in hidden + shown:
            await server.publish(topic, b"", 1)
        assert [m.topic for m in await device.take(len(shown))] == shown
        await device.silent()


async def test_will_to_a_foreign_topic_is_not_published(broker_kind: str) -> None:
    async with (
        open_broker(broker_kind, users=USERS, rules=True) as broker,
        connected(broker, "server", user="server", password=b"three") as server,
    ):
        await server.subscribe(("gca/v1/#", 1))
        for name in ("dev-2", "dev-1"):
            will = mqtt.Will(f"gca/v1/run/pres/{name}", b"", 1)
            client = await open_socket(broker)
            client.write(mqtt.Connect("dev-1", user="dev-1", password=b"one", will=will))
            await client.next()
            client.reset()
        assert [m.topic for m in await server.take(1)] == ["gca/v1/run/pres/dev-1"]
        await server.silent()
