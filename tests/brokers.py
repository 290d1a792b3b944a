"""Real brokers for tests: the embedded one and mosquitto behind one face, and a client that sends raw packets.

`broker` is a fixture that runs a test against both; `open_broker` starts one with options.
"""

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker_server.broker import packets as mqtt
from broker_server.broker.access import (
    Anonymous,
    CertificateNames,
    Everything,
    PasswordTable,
    gca_rules,
    hash_password,
)
from broker_server.broker.encode import encode
from broker_server.broker.limits import Limits
from broker_server.broker.mosquitto import acl_patterns, mosquitto_conf
from broker_server.broker.parse import PacketParser
from broker_server.broker.tcp import TcpBroker
from broker_server.broker.tls import server_context

KINDS = ("embedded", "mosquitto")
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
PATIENCE = 20.0  # seconds until a test gives up waiting; no test measures time with it
P = TypeVar("P", bound=mqtt.Packet)


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RunningBroker:
    """What a test sees of a broker."""

    kind: str
    host = "127.0.0.1"
    port: int
    certs: Path | None = None

    @property
    def url(self) -> str:
        return f"mqtts://localhost:{self.port}" if self.certs else f"mqtt://{self.host}:{self.port}"

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def restart(self) -> None:
        """Stop and start on the same port; like a broker without persistence, it has forgotten everything."""
        await self.stop()
        await self.start()


class EmbeddedBroker(RunningBroker):
    kind = "embedded"

    def __init__(self, users: Mapping[str, str] | None, rules: bool, limits: Limits, certs: Path | None = None) -> None:
        self.port, self.certs = 0, certs
        hashes = {user: hash_password(word.encode()) for user, word in (users or {}).items()}
        self._authentication = PasswordTable(hashes) if users else CertificateNames() if certs else Anonymous()
        self._authorisation = gca_rules() if rules else Everything()
        self._limits = limits
        self.server: TcpBroker

    async def start(self) -> None:
        self.server = TcpBroker(self._authentication, self._authorisation, self._limits)
        tls = _tls_files(self.certs)
        self.port = await self.server.start(self.host, self.port, ssl=server_context(*tls) if tls else None)

    async def stop(self) -> None:
        await self.server.close()


class MosquittoBroker(RunningBroker):
    kind = "mosquitto"

    def __init__(
        self, folder: Path, users: Mapping[str, str] | None, rules: bool, limits: Limits, certs: Path | None = None,
        own_limits: bool = False,
    ) -> None:  # fmt: skip
        self.certs = certs
        certificate, key, client_ca = _tls_files(certs) or (None, None, None)
        self.port = free_port()
        password_file = acl_file = None
        if users:
            password_file = folder / "passwords"
            password_file.touch(0o600)
            for user, word in users.items():
                subprocess.run(["mosquitto_passwd", "-b", str(password_file), user, word], check=True, timeout=PATIENCE)
        if rules:
            acl_file = folder / "acl"
            acl_file.write_text(acl_patterns())
            acl_file.chmod(0o600)
        conf = mosquitto_conf(
            self.port,
            tls_cert=certificate,
            tls_key=key,
            client_ca=client_ca,
            password_file=password_file,
            acl_file=acl_file,
            max_packet_size=limits.max_packet_size,
            user="root" if os.geteuid() == 0 else None,
        )
        kept = [line for line in conf.splitlines() if not (own_limits and line.startswith("max_"))]
        self._config = folder / "mosquitto.conf"
        self._config.write_text("\n".join(kept) + "\n")
        self._log = folder / "log"
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        assert MOSQUITTO is not None
        with self._log.open("ab") as log:
            command = (MOSQUITTO, "-c", str(self._config))
            self._process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        for _ in range(400):
            try:
                _, writer = await asyncio.open_connection(self.host, self.port)
            except OSError:
                if self._process.returncode is not None:
                    break
                await asyncio.sleep(0.01)
            else:
                writer.close()
                return
        raise RuntimeError(f"mosquitto did not start: {self._log.read_text()[-2000:]}")

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()


@asynccontextmanager
async def open_broker(
    kind: str,
    *,
    users: Mapping[str, str] | None = None,
    rules: bool = False,
    limits: Limits | None = None,
    certs: Path | None = None,
    own_limits: bool = False,
) -> AsyncIterator[RunningBroker]:
    """Start a broker of `kind` on a free port; of `limits`, mosquitto gets the packet size only.

    `users` maps names to passwords (None: anonymous); `rules` puts this project's topic rules in force.
    `certs` is a folder of `gca certs` with a certificate for localhost: then clients are who their certificates say.
    `own_limits`: mosquitto keeps the limits that it comes with, instead of ours.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory() as folder:
        broker: RunningBroker
        if kind == "embedded":
            broker = EmbeddedBroker(users, rules, limits, certs)
        else:
            skip_without_mosquitto()
            broker = MosquittoBroker(Path(folder), users, rules, limits, certs, own_limits)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()


def _tls_files(certs: Path | None) -> tuple[Path, Path, Path] | None:
    return (certs / "hosts/localhost.crt", certs / "hosts/localhost.key", certs / "ca.crt") if certs else None


def skip_without_mosquitto() -> None:
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not on PATH; install it to run the same test against it")


@pytest.fixture(params=[pytest.param(kind, marks=[pytest.mark.mosquitto] * (kind == "mosquitto")) for kind in KINDS])
def broker_kind(request: pytest.FixtureRequest) -> str:
    """For tests that start a broker with options of their own."""
    return str(request.param)


@pytest.fixture
async def broker(broker_kind: str) -> AsyncIterator[RunningBroker]:
    """A running broker with default options, one test for each kind."""
    async with open_broker(broker_kind) as running:
        yield running


class RawClient:
    """Sends and awaits single packets; answers nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.session_present = False
        self._parser = PacketParser(mqtt.MAX_REMAINING_LENGTH)
        self._arrived: deque[mqtt.Packet] = deque()
        self._ids = itertools.cycle(range(1, 65_536))

    def write(self, packet: mqtt.Packet) -> None:
        self.writer.write(encode(packet))

    async def next(self, timeout: float = PATIENCE) -> mqtt.Packet:
        """Return the next packet. Raises ConnectionError when the broker has closed, TimeoutError if nothing comes."""
        async with asyncio.timeout(timeout):
            while not self._arrived:
                data = await self.reader.read(1 << 18)
                if not data:
                    raise ConnectionResetError("closed by the broker")
                self._arrived.extend(self._parser.feed(data))
        return self._arrived.popleft()

    async def expect(self, kind: type[P], timeout: float = PATIENCE) -> P:
        """Return the next packet, which has to be of this kind."""
        packet = await self.next(timeout)
        assert isinstance(packet, kind), packet
        return packet

    async def take(self, count: int, *, acknowledge: bool = True) -> list[mqtt.Publish]:
        """Return the next `count` PUBLISH packets, skipping acknowledgements of our own."""
        taken: list[mqtt.Publish] = []
        while len(taken) < count:
            packet = await self.next()
            if isinstance(packet, mqtt.Publish):
                taken.append(packet)
                if packet.qos and acknowledge:
                    self.write(mqtt.PubAck(packet.packet_id))
        return taken

    async def subscribe(self, *requests: tuple[str, int]) -> tuple[int, ...]:
        """Return the granted codes."""
        packet_id = next(self._ids)
        self.write(mqtt.Subscribe(packet_id, requests))
        answer = await self.expect(mqtt.SubAck)
        assert answer.packet_id == packet_id
        return answer.codes

    async def publish(self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False) -> None:
        """Return when the broker has answered, at once for QoS 0."""
        packet_id = next(self._ids) if qos else 0
        self.write(mqtt.Publish(topic, payload, qos, retain, packet_id=packet_id))
        await self.writer.drain()
        if qos == 1:
            assert (await self.expect(mqtt.PubAck)).packet_id == packet_id
        elif qos == 2:
            assert (await self.expect(mqtt.PubRec)).packet_id == packet_id
            self.write(mqtt.PubRel(packet_id))
            assert (await self.expect(mqtt.PubComp)).packet_id == packet_id

    async def silent(self) -> None:
        """Assert that the broker has sent nothing more: the answer to a ping comes next."""
        self.write(mqtt.PingReq())
        packet = await self.next()
        assert isinstance(packet, mqtt.PingResp), packet

    async def closed(self) -> list[mqtt.Packet]:
        """Wait until the broker closes and return what it sent before."""
        seen: list[mqtt.Packet] = []
        while True:
            try:
                seen.append(await self.next())
            except ConnectionError:
                return seen

    def reset(self) -> None:
        """End the connection with a TCP reset, as when a device loses power behind a router that notices."""
        self.writer.transport.abort()

    async def disconnect(self) -> None:
        self.write(mqtt.Disconnect())
        assert await self.closed() == []


async def open_socket(broker: RunningBroker, *, receive_buffer: int | None = None) -> RawClient:
    """Open a TCP connection without sending anything; `receive_buffer` bounds what the kernel takes in unread."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(sock, (broker.host, broker.port))
    return RawClient(*await asyncio.open_connection(sock=sock))


@asynccontextmanager
async def _client(broker: RunningBroker, packet: mqtt.Connect, receive_buffer: int | None) -> AsyncIterator[RawClient]:
    client = await open_socket(broker, receive_buffer=receive_buffer)
    try:
        client.write(packet)
        answer = await client.expect(mqtt.ConnAck)
        assert answer.code is mqtt.ConnectCode.ACCEPTED, answer
        client.session_present = answer.session_present
        yield client
    finally:
        client.writer.transport.abort()


def connected(
    broker: RunningBroker, client_id: str, *, receive_buffer: int | None = None, **fields: Any
) -> AbstractAsyncContextManager[RawClient]:
    """An accepted raw client; `fields` are those of Connect. Leaving the block cuts it off without DISCONNECT."""
    return _client(broker, mqtt.Connect(client_id, **fields), receive_buffer)
