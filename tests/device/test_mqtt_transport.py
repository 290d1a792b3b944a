"""The MQTT transport beside both real brokers: slow links, broken ones, refusals and what they say."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokers import PATIENCE, RunningBroker, open_broker

from broker_server.broker.tcp import TcpBroker
from edge_client.clock import RealClock
from edge_client.errors import ConfigError, ConnectionLost, EnvironmentFault, GcaError
from edge_client.transport.base import Connect, Incoming, Settings, Transport, Will
from edge_client.transport.endpoint import Endpoint, endpoint
from edge_client.transport.mqtt import connector
from sim.links.profiles import LinkProfile
from sim.links.proxy import ShapingProxy


@asynccontextmanager
async def link(broker: RunningBroker, rate: float | None) -> AsyncIterator[tuple[ShapingProxy, Connect]]:
    """A device's link to the broker, of `rate` bits/s both ways, and the way to connect through it."""
    profile = LinkProfile(name="test", up=rate, down=rate)
    proxy = ShapingProxy(profile, broker.host, broker.port, clock=RealClock(), seed=1, device="d0")
    port = await proxy.start()
    try:
        yield proxy, connector(Endpoint("127.0.0.1", port))
    finally:
        await proxy.close()


def direct(broker: RunningBroker) -> Connect:
    return connector(Endpoint(broker.host, broker.port))


async def take(transport: Transport, count: int, *, acknowledge: bool = True) -> list[Incoming]:
    taken: list[Incoming] = []
    async with asyncio.timeout(PATIENCE):
        async for message in transport.messages():
            if acknowledge:
                transport.acknowledge(message)
            taken.append(message)
            if len(taken) == count:
                break
    return taken


async def refusal(connect: Connect, settings: Settings | None = None) -> GcaError:
    """Return the error that connecting ends with."""
    with pytest.raises(GcaError) as caught:
        async with asyncio.timeout(PATIENCE), connect(settings or Settings("refused")):
            pass
    assert "\n" not in str(caught.value)
    return caught.value


async def test_an_upload_four_times_longer_than_the_keepalive_arrives_once(broker: RunningBroker) -> None:
    """16 kB at 16 kbit/s take over 8 s, the keepalive is 2 s, a chunk of 1 kB takes half a second."""
    begun = time.monotonic()
    async with link(broker, 16_000) as (proxy, connect), direct(broker)(Settings("server")) as server:
        await server.subscribe("up/#")
        async with connect(Settings("device", keepalive=2)) as device:
            window = asyncio.Semaphore(2)

            async def send(index: int) -> None:
                async with window:
                    await device.publish(f"up/{index}", index.to_bytes(2, "big") * 500)

            async with asyncio.TaskGroup() as sending:
                for index in range(16):
                    sending.create_task(send(index))
        arrived = await take(server, 16)
        await server.publish("up/end", b"end")
        assert (await take(server, 1))[0].payload == b"end"  # nothing came twice
    assert [m.payload for m in arrived] == [i.to_bytes(2, "big") * 500 for i in range(16)]
    assert proxy.counters().connections == 1
    assert time.monotonic() - begun > 8.0  # the link's doing, so it can only be more


async def test_a_publish_notices_a_broken_connection_at_once(broker: RunningBroker) -> None:
    """The link needs minutes for this message; the wait ends with the connection and not with some time-out."""
    async with link(broker, 8_000) as (proxy, connect):
        with pytest.raises(ConnectionLost, match=r"mqtt://127\.0\.0\.1"):
            async with connect(Settings("device")) as device:
                publishing = asyncio.ensure_future(device.publish("up", bytes(200_000)))
                await asyncio.sleep(0.2)
                assert not publishing.done()
                proxy.reset_connections()
                async with asyncio.timeout(5):
                    await publishing


async def test_reading_ends_with_the_connection_and_so_does_every_later_call(broker: RunningBroker) -> None:
    async with link(broker, None) as (proxy, connect), connect(Settings("device")) as device:
        await device.subscribe("a")
        proxy.reset_connections()
        with pytest.raises(ConnectionLost):
            await take(device, 1)
        for call in (device.publish("a", b""), device.subscribe("b"), device.unsubscribe("b")):
            with pytest.raises(ConnectionLost):
                async with asyncio.timeout(5):
                    await call


async def test_what_was_not_acknowledged_comes_again_to_a_persistent_session(broker: RunningBroker) -> None:
    settings = Settings("server", persistent=True)
    async with link(broker, None) as (proxy, connect):
        async with connect(settings) as server, direct(broker)(Settings("device")) as device:
            await server.subscribe("up/+")
            for index in range(3):
                await device.publish(f"up/{index}", b"x")
            first, second, third = await take(server, 3, acknowledge=False)
            server.acknowledge(first)
            await server.publish("flush", b"")  # the acknowledgement has reached the broker before this returns
            proxy.reset_connections()
        async with connect(settings) as server:
            again = await take(server, 2)
            assert [m.topic for m in again] == [second.topic, third.topic] == ["up/1", "up/2"]
        async with connect(settings) as server, direct(broker)(Settings("device")) as device:
            await device.publish("up/end", b"x")
            assert [m.topic for m in await take(server, 1)] == ["up/end"]


async def test_a_will_goes_out_retained_when_the_connection_breaks_and_not_after_a_goodbye(
    broker: RunningBroker,
) -> None:
    async with link(broker, None) as (proxy, connect), direct(broker)(Settings("server")) as server:
        await server.subscribe("pres/+")
        async with connect(Settings("orderly", Will("pres/orderly", b"lost"))):
            pass
        async with connect(Settings("cut", Will("pres/cut", b"lost"))) as device:
            await device.publish("pres/cut", b"online", retain=True)
            proxy.reset_connections()
            seen = await take(server, 2)
        assert [(m.topic, m.payload) for m in seen] == [("pres/cut", b"online"), ("pres/cut", b"lost")]
        async with direct(broker)(Settings("later")) as later:
            await later.subscribe("pres/#")
            (kept,) = await take(later, 1)
            assert (kept.payload, kept.retained) == (b"lost", True)


async def test_who_unsubscribed_hears_nothing_more(broker: RunningBroker) -> None:
    async with direct(broker)(Settings("device")) as device:
        await device.subscribe("bc/+", "round")
        await device.unsubscribe("bc/+")
        await device.publish("bc/1", b"x")
        await device.publish("round", b"y")
        assert [m.topic for m in await take(device, 1)] == ["round"]


async def test_a_wrong_password_is_an_error_that_names_broker_and_mend(broker_kind: str) -> None:
    async with open_broker(broker_kind, users={"dev": "right"}) as broker:
        for password in ("wrong", None):
            error = await refusal(connector(endpoint(broker.url, username="dev", password=password)))
            assert isinstance(error, EnvironmentFault)
            assert broker.url in str(error) and "GCA_PASSWORD" in str(error) and "wrong" not in str(error)
        async with connector(endpoint(broker.url, username="dev", password="right"))(Settings("dev")) as device:
            await device.publish("a", b"")


async def test_a_broker_that_is_not_there_may_come_yet() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        where = endpoint(f"mqtt://127.0.0.1:{taken.getsockname()[1]}")
        error = await refusal(connector(where))
    assert isinstance(error, ConnectionLost)
    assert str(where) in str(error) and "refused" in str(error)


async def test_a_name_that_no_resolver_knows_is_told() -> None:
    error = await refusal(connector(endpoint("mqtt://no-such-host.invalid")))
    assert "no-such-host.invalid" in str(error)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a self-signed certificate for localhost, without any address, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH; the certificate is made with it")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*command.split(), *names], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@asynccontextmanager
async def tls_broker(certificate: Path) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    broker = TcpBroker()
    port = await broker.start("127.0.0.1", ssl=context)
    try:
        yield port
    finally:
        await broker.close()


async def test_a_certificate_is_verified_by_name_and_by_issuer(certificate: Path) -> None:
    ca = str(certificate / "cert.pem")
    async with tls_broker(certificate) as port:
        async with connector(endpoint(f"mqtts://localhost:{port}", ca_file=ca))(Settings("d")) as device:
            await device.publish("a", b"x")
        wrong_name = await refusal(connector(endpoint(f"mqtts://127.0.0.1:{port}", ca_file=ca)))
        unknown_issuer = await refusal(connector(endpoint(f"mqtts://localhost:{port}")))
    assert isinstance(wrong_name, EnvironmentFault) and isinstance(unknown_issuer, EnvironmentFault)
    assert "not valid for '127.0.0.1'" in str(wrong_name) and "subjectAltName" in str(wrong_name)
    assert "cannot be verified" in str(unknown_issuer) and "--ca-file" in str(unknown_issuer)


async def test_an_unusable_ca_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for path in (tmp_path / "ca.pem", tmp_path / "absent.pem"):
        error = await refusal(connector(endpoint("mqtts://localhost:1", ca_file=str(path))))
        assert isinstance(error, EnvironmentFault) and str(path) in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://a..b",
        "mqtt://" + "x" * 70,
        "mqtt://h:0",
        "localhost:1883",
        "http://localhost",
        "mqtt://",
        "mqtt://h:0x1",
        "mqtt://h:70000",
        "mqtt://h/path",
        "",
        "mqtt:h",
    ],
)
def test_an_address_that_is_none_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(ConfigError, match="mqtt://HOST:PORT"):
        endpoint(url)


def test_a_password_in_an_address_is_refused_and_none_is_ever_shown() -> None:
    with pytest.raises(ConfigError, match="GCA_PASSWORD") as caught:
        endpoint("mqtt://user:secret@host")
    assert "secret" not in str(caught.value)
    where = endpoint("mqtts://us%20er@host", password="secret")
    assert (where.host, where.port, where.tls, where.username) == ("host", 8883, True, "us er")
    assert "secret" not in repr(where) + str(where)
    assert endpoint("mqtt://host").port == 1883
