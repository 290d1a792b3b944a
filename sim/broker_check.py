"""What a broker can do, found out by sending messages to ourselves."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from edge_client.errors import ConnectionLost, EnvironmentFault, GcaError
from edge_client.transport.base import Connect, Incoming, Settings, Transport
from edge_client.transport.endpoint import Endpoint
from edge_client.transport.mqtt import connector
from sim.doctor import Finding

NEEDS_MESSAGE = 65_536 + 1_024
"""Bytes: the largest chunk and its envelope must pass."""
PROBES = (1_024, 4_096, 16_384, NEEDS_MESSAGE, 262_144, 1_048_576)
PATIENCE_S = 5.0
"""For an answer, beyond what the answers before let expect of a message of this size."""
KEEPALIVE_S = 20
AWAY = 1_200
"""Messages for a client that is away: more than the 1000 that mosquitto and EMQX keep by default."""
AWAY_S = 3.0
"""For sending these, and again for taking them: who needs longer is not asked."""
AT_ONCE = 100


async def examine_broker(where: Endpoint) -> list[Finding]:
    """Check what a broker does with QoS 1, with retained and with large messages, and with a client that is away."""
    found = await _examine(where, PROBES)
    if all(one.state != "missing" for one in found):
        found.append(await _Away(connector(where), where.username or "doctor").finding())
    return found


async def require_broker(where: Endpoint) -> None:
    """Raise `EnvironmentFault` unless this broker is there and lets our largest message through: a broker that finds
    a message too large drops it without a word, and a run would wait for it."""
    for finding in await _examine(where, (NEEDS_MESSAGE,)):
        if finding.state == "missing":
            what = finding.detail if str(where) in finding.detail else f"{where}: {finding.what}: {finding.detail}"
            raise EnvironmentFault(f"{what}; look with gca doctor --broker {where}")


async def _examine(where: Endpoint, sizes: Sequence[int]) -> list[Finding]:
    name, found = where.username or "doctor", list[Finding]()
    try:
        async with connector(where)(Settings(f"{name}-{_run()}", keepalive=KEEPALIVE_S)) as transport:
            found.append(Finding("broker", "ok", f"{where} answers"))
            found += await _Probe(transport, _topic(name)).run(sizes)
    except ConnectionLost as error:
        mend = "it ends the connection" if found else "check that it runs and that the address is right"
        return [*found, Finding("broker", "missing", f"{error}; {mend}")]
    except GcaError as error:
        return [*found, Finding("broker", "missing", str(error))]
    return found


def _run() -> str:
    return f"doctor-{os.getpid()}"


def _topic(name: str) -> str:
    """Return a topic of the shape `pres/<user>`, which is one that the access rules leave to everybody."""
    return f"gca/v1/{_run()}/pres/{name}"


class _Probe:
    """Sends messages to itself."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport, self._topic = transport, topic
        self._inbox: AsyncIterator[Incoming] = transport.messages()

    async def run(self, sizes: Sequence[int]) -> list[Finding]:
        await self._transport.subscribe(self._topic)
        try:
            took = await self._there_and_back(16, PATIENCE_S)
        except (ConnectionLost, TimeoutError):
            mend = "check the broker's access rules; gca broker --print-acl shows those that work"
            return [Finding("QoS 1", "missing", f"a message of 16 bytes to {self._topic} does not come back: {mend}")]
        return [
            Finding("QoS 1", "ok", "acknowledged and delivered"),
            Finding("round trip", "ok", f"{1000 * took:.1f} ms"),
            await self._retained(),
            _message_limit([16, *[size async for size in self._those_that_pass(sizes, took)]], sizes),
        ]

    async def _there_and_back(self, size: int, patience: float) -> float:
        """Return the seconds that a message of this size takes to the broker and back."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(patience):
            await self._transport.publish(self._topic, bytes(size))
            while len((await self._next()).payload) != size:
                pass
        return loop.time() - began

    async def _those_that_pass(self, sizes: Sequence[int], took: float) -> AsyncIterator[int]:
        """Yield the sizes that come back, growing. A broker drops what it finds too large, or the connection."""
        before = 16
        for size in sizes:
            try:
                took = await self._there_and_back(size, PATIENCE_S + 4 * took * size / before)
            except (ConnectionLost, TimeoutError):
                return
            before = size
            yield size

    async def _retained(self) -> Finding:
        """Ask for a message that was there before the subscription."""
        transport, topic = self._transport, self._topic
        mend = "devices that reconnect will not learn the round; switch retained messages on"
        try:
            async with asyncio.timeout(PATIENCE_S):
                await transport.unsubscribe(topic)
                await transport.publish(topic, b"kept", retain=True)
                await transport.subscribe(topic)
                while not (message := await self._next()).retained:
                    pass
                await transport.publish(topic, b"", retain=True)
        except TimeoutError:
            return Finding("retained", "missing", f"a retained message does not come back: {mend}")
        if message.payload != b"kept":
            return Finding("retained", "missing", f"another retained message comes back: {mend}")
        return Finding("retained", "ok", "kept for those who subscribe later")

    async def _next(self) -> Incoming:
        message = await anext(self._inbox)
        self._transport.acknowledge(message)
        return message


def _message_limit(passed: Sequence[int], sizes: Sequence[int]) -> Finding:
    """Say what the largest message that came back means."""
    largest = max(passed)
    if largest == sizes[-1]:
        return Finding("largest message", "ok", f"{largest} bytes and perhaps more")
    refused = next(size for size in sizes if size > largest)
    limit = f"{largest} bytes passed, {refused} did not"
    if largest >= NEEDS_MESSAGE:
        return Finding("largest message", "ok", f"{limit}; {NEEDS_MESSAGE} are needed")
    mend = "raise the broker's limit (mosquitto: max_packet_size)"
    return Finding("largest message", "missing", f"{limit}, but {NEEDS_MESSAGE} are needed: {mend}")


class _Away:
    """Leaves a session behind, sends it messages, comes back and counts them; then there is no such session any more.

    Messages beyond what a broker keeps are dropped although it has acknowledged them.
    """

    def __init__(self, connect: Connect, name: str) -> None:
        self._connect, self._topic = connect, _topic(name)
        self._away = Settings(f"{name}-{_run()}-away", keepalive=KEEPALIVE_S, persistent=True)
        self._sender = Settings(f"{name}-{_run()}-sender", keepalive=KEEPALIVE_S)

    async def finding(self) -> Finding:
        """Say how many of the messages came back, or that it was not found out."""
        try:
            count = await self._count()
        except TimeoutError:
            return _away("note", f"not checked: {AWAY} messages take longer than {AWAY_S:g} s here")
        except GcaError as error:
            return _away("note", f"not checked: {error}")
        finally:
            with suppress(GcaError):
                async with self._connect(replace(self._away, persistent=False)):
                    pass  # which lets the broker forget the session, and what it has kept for it
        if count >= AWAY:
            return _away("ok", f"{AWAY} messages were kept, and perhaps more are")
        mend = "raise the limit (mosquitto: max_queued_messages; gca broker --print-mosquitto-conf)"
        return _away("note", f"{count} of {AWAY} messages were kept, the rest dropped without a word: {mend}")

    async def _count(self) -> int:
        async with self._connect(self._away) as transport:
            await transport.subscribe(self._topic)
        async with self._connect(self._sender) as transport, asyncio.timeout(AWAY_S):
            for _ in range(AWAY // AT_ONCE):
                await asyncio.gather(*(transport.publish(self._topic, b"kept") for _ in range(AT_ONCE)))
        async with self._connect(self._away) as transport, asyncio.timeout(AWAY_S):
            return await _kept(transport, self._topic)


async def _kept(transport: Transport, topic: str) -> int:
    """Count what was kept for us, up to a message that follows it. That is sent once some have come, as a full queue
    would have no room for it, or none does."""
    some, count = asyncio.Event(), 0

    async def follow() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(AWAY_S / 3):
                await some.wait()
        await transport.publish(topic, b"last")

    following = asyncio.create_task(follow())
    try:
        async for message in transport.messages():
            transport.acknowledge(message)
            if message.payload == b"last":
                break
            count += 1
            some.set()
        return count
    finally:
        following.cancel()


def _away(state: Literal["ok", "note"], detail: str) -> Finding:
    return Finding("while away", state, detail)
