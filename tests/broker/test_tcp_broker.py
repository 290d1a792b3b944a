"""The TCP face of the embedded broker: sockets, slices, faults, TLS."""

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokers import EmbeddedBroker, RawClient, connected, open_broker, open_socket

from broker_server.broker import packets as mqtt
from broker_server.broker import tcp
from broker_server.broker.counters import Traffic
from broker_server.broker.limits import Limits
from broker_server.broker.tcp import TcpBroker, serve
from edge_client.errors import EnvironmentFault


@asynccontextmanager
async def embedded(**limits: float) -> AsyncIterator[EmbeddedBroker]:
    async with open_broker("embedded", limits=Limits(**limits)) as broker:  # type: ignore[arg-type]
        assert isinstance(broker, EmbeddedBroker)
        yield broker


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (the broker has no event for a change of its counters)
            await asyncio.sleep(0.01)


async def test_context_manager_starts_and_closes() -> None:
    async with TcpBroker() as broker:
        port = broker.port
        assert port > 0
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
    assert broker.port == 0
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_occupied_port_is_named() -> None:
    async with TcpBroker() as broker:
        with pytest.raises(EnvironmentFault, match=f"127.0.0.1:{broker.port}: Address already in use; choose"):
            await TcpBroker().start(port=broker.port)


async def test_serve_runs_until_cancelled() -> None:
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve("127.0.0.1", 0, ready=ready))
    port = await ready
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_400_clients_connect_at_once() -> None:
    async with embedded() as broker:
        clients = await asyncio.gather(*(open_socket(broker) for _ in range(400)))
        for number, client in enumerate(clients):
            client.write(mqtt.Connect(f"c{number}"))
        assert {await client.next() for client in clients} == {mqtt.ConnAck()}
        assert broker.server.counters.sessions == 400
        for client in clients:
            client.reset()
        await until(lambda: broker.server.counters.sessions == 0)


async def test_counters_are_the_bytes_on_the_socket() -> None:
    """Sent and received by the client: CONNECT 15 + PUBLISH 1 + 3 + 2 + 1 + 2 + 100 000, CONNACK 4 + PUBACK 4."""
    async with embedded() as broker, connected(broker, "c") as client:
        await client.publish("t", bytes(100_000), 1)
        assert broker.server.counters.connections == {"c": Traffic(15 + 100_009, 8, 1, 0)}


async def test_a_slow_client_costs_one_slice_and_no_copy() -> None:
    async with (
        embedded() as broker,
        connected(broker, "w") as writer,
        connected(broker, "a", receive_buffer=8_192) as a,
        connected(broker, "b", receive_buffer=8_192) as b,
    ):
        for client in (a, b):
            await client.subscribe(("t", 1))
            client.writer.transport.pause_reading()
        await writer.publish("t", bytes(20_000_000), 1)
        peers = [peer for peer in broker.server._peers.values() if peer._large]
        assert len(peers) == 2
        assert all(peer.transport.get_write_buffer_size() <= tcp._SLICE for peer in peers)
        assert peers[0]._large[-1].obj is peers[1]._large[-1].obj
        for client in (a, b):
            client.writer.transport.resume_reading()
            assert len((await client.take(1))[0].payload) == 20_000_000


async def test_a_broken_invariant_closes_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded() as broker, connected(broker, "good") as good, connected(broker, "bad") as bad:
        await good.subscribe(("t", 1))
        handle = broker.server.core._publish

        def fail(connection: object, session: object, packet: mqtt.Publish, now: float) -> None:
            if packet.topic == "poison":
                raise KeyError("an invariant")
            handle(connection, session, packet, now)  # type: ignore[arg-type]

        monkeypatch.setattr(broker.server.core, "_publish", fail)
        with caplog.at_level(logging.CRITICAL, logger="broker_server.broker.tcp"):
            bad.write(mqtt.Publish("poison", b""))
            assert await bad.closed() == []
        await good.publish("t", b"x", 0)
        assert [m.payload for m in await good.take(1)] == [b"x"]
        assert broker.server.counters.closed == {"internal error": 1}


async def test_unknown_client_cannot_make_the_broker_buffer() -> None:
    """A CONNECT has an end; before it, the limit for messages does not count."""
    async with embedded() as broker:
        client = await open_socket(broker)
        client.writer.write(bytes((0x10, 0xFF, 0xFF, 0x7F)))
        assert await client.closed() == []
        assert broker.server.counters.closed == {"too large": 1}


async def test_publishers_are_held_over_real_sockets_and_nothing_is_lost() -> None:
    """Four publishers send 25 MB to a reader that starts late; the broker never holds more than its bound."""
    most = 0
    async with embedded(high_water=2_000_000, low_water=1_000_000) as broker, connected(broker, "r") as reader:
        await reader.subscribe(("t", 1))
        reader.writer.transport.pause_reading()

        async def upload(name: str) -> None:
            nonlocal most
            async with connected(broker, name) as writer:
                for _ in range(100):
                    await writer.publish("t", bytes(64_000), 1)
                    most = max(most, broker.server.counters.backlog)

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(upload(f"w{number}"))
            await until(lambda: broker.server.counters.backlog > 2_000_000)
            reader.writer.transport.resume_reading()
            taken = await reader.take(400)
        assert sum(len(m.payload) for m in taken) == 400 * 64_000
        assert most <= 2_000_000 + 4 * (64_000 + 262_144)
        await until(lambda: broker.server.counters.closed == {"lost": 4})


async def test_stalled_reader_is_closed_and_a_slow_one_is_not() -> None:
    """The slow one takes 4 kB every 0.1 s: its socket wakes the broker too rarely, but the kernel's queue shows it."""
    async with (
        embedded(stall_timeout=2.0) as broker,
        connected(broker, "slow", receive_buffer=8_192, keepalive=0) as slow,
        connected(broker, "stalled", receive_buffer=8_192, keepalive=0) as stalled,
        connected(broker, "w") as writer,
    ):
        for client in (slow, stalled):
            await client.subscribe(("t", 1))
            client.writer.transport.pause_reading()
        await writer.publish("t", bytes(5_000_000), 1)
        sock = slow.writer.get_extra_info("socket")
        loop = asyncio.get_running_loop()
        raw = sock.dup()
        raw.setblocking(False)
        try:
            while not broker.server.counters.closed:
                await loop.sock_recv(raw, 4_096)
                await asyncio.sleep(0.1)
        finally:
            raw.close()
        counters = broker.server.counters
        assert counters.closed == {"stalled": 1}
        assert set(counters.connections) == {"slow", "w"}


async def test_whoever_is_refused_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with open_broker("embedded", users={"pi-1": "right"}) as broker:
        for name in ("pi-1", "pi-1", "pi-2"):
            client = await open_socket(broker)
            client.write(mqtt.Connect(client_id=name, user=name, password=b"wrong"))
            assert (await client.expect(mqtt.ConnAck)).code == mqtt.ConnectCode.BAD_CREDENTIALS
            client.writer.close()
    first, second = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert first.startswith("client 'pi-1', connection #1 from ('127.0.0.1', ")
    assert first.endswith(": refused bad_credentials") and second.startswith("client 'pi-2'")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH; the TLS test makes its certificate with it")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    paths = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, *paths], check=True, capture_output=True, timeout=30)
    return tmp_path


async def test_tls_with_a_large_message_both_ways(certificate: Path) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate / "cert", certificate / "key")
    client_side = ssl.create_default_context(cafile=str(certificate / "cert"))
    broker = TcpBroker()
    port = await broker.start(ssl=server_side)
    try:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port, ssl=client_side))
        client.write(mqtt.Connect("c"))
        await client.expect(mqtt.ConnAck)
        await client.subscribe(("t", 1))
        payload = bytes(range(250)) * 6_000
        client.write(mqtt.Publish("t", payload, 1, packet_id=9))
        (message,) = await client.take(1)
        assert message.payload == payload
        client.writer.transport.abort()
    finally:
        await broker.close()
