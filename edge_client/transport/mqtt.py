"""MQTT 3.1.1 through aiomqtt (the maintained continuation of asyncio-mqtt) on paho-mqtt.

Four habits of the libraries are corrected here. Three end a slow upload otherwise: the fixed ten-second time-out of
every call (ours wait as long as the connection lives), a publish that does not notice a lost connection (ours is raced
against it), and messages acknowledged before anyone has looked at them (ours are acknowledged by the reader, so the
broker's window bounds memory). The fourth hides why a broker hangs up on a client that it does not know: the reason is
only logged, and the loss not noticed before the broker's first answer.
"""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import aiomqtt

from edge_client.errors import ConnectionLost, EnvironmentFault
from edge_client.transport.base import Connect, Incoming, Settings, Transport
from edge_client.transport.endpoint import Endpoint

T = TypeVar("T")

_REFUSED_FOR_GOOD = {"Bad user name or password", "Not authorized", "Unsupported protocol version",
                     "Client identifier not valid"}  # fmt: skip


AT_ONCE = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
"""Small packets do not wait for TCP's acknowledgement of the one before, which a receiver may hold back for 40 ms."""


class MqttTransport:
    """One aiomqtt connection behind the `Transport` interface."""

    def __init__(self, client: aiomqtt.Client, name: str) -> None:
        self._client = client
        self._name = name

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        await self._alive(self._client.publish(topic, payload, qos=qos, retain=retain, timeout=math.inf))

    async def subscribe(self, *filters: str) -> None:
        asked: Any = [(one, 1) for one in filters]
        granted = await self._alive(self._client.subscribe(asked, timeout=math.inf))
        for one, code in zip(filters, granted, strict=True):
            if int(str(getattr(code, "value", code))) >= 0x80:
                raise EnvironmentFault(
                    f"the broker at {self._name} refuses the subscription to {one}: the name in this client's "
                    "certificate, or its user name, must be its --id (the server's `server`, gca doctor's its "
                    "--username); else check the ACL of the broker"
                )

    async def unsubscribe(self, *filters: str) -> None:
        await self._alive(self._client.unsubscribe(list(filters), timeout=math.inf))

    async def messages(self) -> AsyncIterator[Incoming]:
        try:
            async for message in self._client.messages:
                payload = message.payload if isinstance(message.payload, bytes) else b""
                yield Incoming(str(message.topic), payload, message.retain, (message.mid, message.qos))
        except aiomqtt.MqttError as error:
            raise ConnectionLost(f"connection to {self._name} lost: {_reason(error)}") from None

    def acknowledge(self, message: Incoming) -> None:
        mid, qos = cast("tuple[int, int]", message.token)
        self._client._client.ack(mid, qos)

    async def _alive(self, call: Awaitable[T]) -> T:
        """Await a library call, but not beyond the end of the connection."""
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait((task, self._client._disconnected), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        except aiomqtt.MqttError as error:
            raise ConnectionLost(f"connection to {self._name} lost: {_reason(error)}") from None
        finally:
            task.cancel()
        raise ConnectionLost(f"connection to {self._name} lost while sending")


def connector(where: Endpoint) -> Connect:
    """Return the function that opens connections to this broker. Each call makes a new client object:
    a reused one would resend its old messages by itself, beside our own retries."""

    @asynccontextmanager
    async def connect(settings: Settings) -> AsyncIterator[Transport]:
        last_words = _LastWords()
        client = aiomqtt.Client(
            where.host,
            where.port,
            identifier=settings.client_id,
            username=where.username,
            password=where.password,
            will=aiomqtt.Will(settings.will.topic, settings.will.payload, 1, True) if settings.will else None,
            clean_session=not settings.persistent,
            keepalive=settings.keepalive,
            # Only connecting and closing use this one; a CONNACK may wait behind a slow link's round trip.
            timeout=max(10.0, settings.keepalive),
            tls_context=_tls(where) if where.tls else None,
            logger=last_words.logger(),
            socket_options=[AT_ONCE],
        )
        client.pending_calls_threshold = 1000
        client._client.manual_ack_set(True)
        _notice_an_early_end(client, last_words)
        try:
            await client.__aenter__()
        except aiomqtt.MqttError as error:
            raise _cannot_connect(where, error) from None
        try:
            yield MqttTransport(client, str(where))
        finally:
            await _close(client)

    return connect


class _LastWords(logging.Handler):
    """Keeps what paho logs of a socket that failed, which it tells nobody otherwise; the rest goes where it went."""

    text = "closed before it answered"

    def emit(self, record: logging.LogRecord) -> None:
        if "on socket: " in (message := record.getMessage()):
            self.text = message.partition("on socket: ")[2]
        else:
            logging.getLogger("mqtt").handle(record)

    def logger(self) -> logging.Logger:
        logger = logging.Logger("mqtt of one connection", logging.WARNING)
        logger.addHandler(self)
        return logger


def _notice_an_early_end(client: aiomqtt.Client, last_words: _LastWords) -> None:
    """Let connecting fail as soon as the broker hangs up; aiomqtt would wait for its answer until the time-out."""
    pass_on: Any = client._client.on_disconnect

    def ended(*told: Any) -> None:
        if not client._connected.done():
            client._connected.set_exception(aiomqtt.MqttError(last_words.text))
        pass_on(*told)

    client._client.on_disconnect = ended


async def _close(client: aiomqtt.Client) -> None:
    """Say goodbye if the connection still stands; a broken one has already been reported."""
    try:
        await client.__aexit__(None, None, None)
    except aiomqtt.MqttError:
        return
    finally:
        if client._disconnected.done() and not client._disconnected.cancelled():
            client._disconnected.exception()  # mark as retrieved


class _Context(ssl.SSLContext):
    """Verifies the certificate against `certified_as` instead of the host connected to."""

    certified_as: str | None = None

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        return super().wrap_socket(
            *args, **kwargs | ({"server_hostname": self.certified_as} if self.certified_as else {})
        )


def _tls(where: Endpoint) -> ssl.SSLContext:
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.certified_as = where.certified_as
    try:
        context.load_verify_locations(where.ca_file) if where.ca_file else context.load_default_certs()
    except (OSError, ssl.SSLError) as error:
        raise EnvironmentFault(f"CA file {where.ca_file}: {error}; give a PEM file that can be read") from None
    try:
        if where.cert_file is not None:
            context.load_cert_chain(where.cert_file, where.key_file, password=lambda: "")  # never asks on a terminal
    except (OSError, ssl.SSLError) as error:
        mend = "give readable PEM files that match, the key without a passphrase"
        raise EnvironmentFault(f"{where.cert_file}, {where.key_file}: {error}; {mend}") from None
    return context


def _certificate(where: Endpoint, why: str) -> str:
    if " alert " in why:  # said by the broker, of ours
        if where.cert_file is None:
            return f"the broker at {where} asks for a certificate ({why}); give this client's as --cert and --key"
        mend = "give one that is valid, made for clients, and signed by the CA that the broker trusts"
        return f"the broker at {where} refuses the certificate {where.cert_file} ({why}); {mend}"
    name = where.certified_as or where.host
    if "mismatch" in why or "not valid for" in why:
        return (
            f"the certificate of {where} is not valid for {name!r} ({why}); connect by a name or address that "
            f"it lists, or issue one that lists {name!r} as subjectAltName"
        )
    if "not yet valid" in why or "expired" in why:
        return f"the certificate of {where} is out of its time ({why}); set the clock of this machine, or renew it"
    return f"the certificate of {where} cannot be verified ({why}); pass the CA that signed it as --ca-file"


def _cannot_connect(where: Endpoint, error: aiomqtt.MqttError) -> Exception:
    why = _reason(error)
    if any(reason.lower() in why.lower() for reason in _REFUSED_FOR_GOOD):
        mend = "check user name and GCA_PASSWORD"
        if where.tls and where.cert_file is None:
            mend += ", or give the certificate it asks for as --cert and --key"
        return EnvironmentFault(f"the broker at {where} refuses this client: {why}; {mend}")
    if "certificate" in why.lower() or "alert unknown ca" in why.lower():
        return EnvironmentFault(_certificate(where, why))
    if why == _LastWords.text:  # not every broker says what it wanted
        if where.cert_file is not None:
            why += f"; perhaps {where.cert_file} is not valid, or not of a CA that the broker trusts"
        elif where.tls:
            why += "; perhaps it wants a certificate: --cert and --key"
        else:
            why += f"; perhaps it wants TLS: mqtts://{where.host}"
    return ConnectionLost(f"no connection to {where}: {why}")


def _reason(error: Any) -> str:
    return str(error).replace("\n", " ")[:200]
