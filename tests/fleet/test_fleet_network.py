"""The network in memory: connections and packets by hand, and against the real client, proxy and broker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from fleet.virtual import now, virtually

from broker_server.broker.limits import Limits
from broker_server.broker.tcp import TcpBroker
from edge_client.clock import RealClock
from edge_client.errors import ConnectionLost
from edge_client.transport.base import Connect, Incoming, Settings, Transport, Will
from edge_client.transport.endpoint import Endpoint
from edge_client.transport.mqtt import connector
from sim.fleet.loop import Blocked
from sim.fleet.network import Network
from sim.links.profiles import LinkProfile, parse_link
from sim.links.proxy import LinkCounters, ShapingProxy

Ends = tuple[Connect, Connect, Callable[[], LinkCounters]]
FAST = parse_link("10mbit/10mbit/2ms")


async def next_message(transport: Transport) -> Incoming:
    async for message in transport.messages():
        transport.acknowledge(message)
        return message
    raise AssertionError("messages() ended")


# ---- a connection ------------------------------------------------------------------------------------------------


def test_a_connection_costs_what_its_packets_weigh() -> None:
    """By hand, MQTT 3.1.1 packets on an idle link with 52 B header per segment, one direction each.

    Up: CONNECT 2 + 10 + (2 + 1) = 15; SUBSCRIBE 2 + 2 + (2 + 3 + 1) = 10; PUBLISH QoS 1 of 100 B on "t/x":
    2 + 2 + 3 + 2 + 100 = 109; PUBACK 4 for its own message; DISCONNECT 2.
    Down: CONNACK 4, SUBACK 5, PUBACK 4, PUBLISH 109.
    """

    async def main() -> LinkCounters:
        network = Network({"a": parse_link("1mbit/1mbit/40ms")}, seed=1)
        async with network.behind("a")(Settings("a", keepalive=60)) as transport:
            await transport.subscribe("t/x")
            await transport.publish("t/x", bytes(100))
            message = await next_message(transport)
            assert (message.topic, message.payload, message.retained) == ("t/x", bytes(100), False)
        await asyncio.sleep(1)
        return network.counters()["a"]

    counters = virtually(main())
    assert counters.connections == 1
    assert (counters.up.stream_bytes, counters.down.stream_bytes) == (15 + 10 + 109 + 4 + 2, 4 + 5 + 4 + 109)
    # One segment each, also PUBACK and DISCONNECT in a row: the link is idle, so the first has started by the second.
    assert counters.up.segments == 5
    assert counters.up.wire_bytes == counters.up.stream_bytes + 52 * counters.up.segments


def test_round_trips_take_what_the_link_takes() -> None:
    """CONNECT 15 + 52 B up and CONNACK 4 + 52 B down at 80 kbit/s and 200 ms: 6.7 + 100 + 5.6 + 100 ms."""

    async def main() -> float:
        network = Network({"a": parse_link("80kbit/80kbit/200ms")}, seed=1)
        async with network.behind("a")(Settings("a")):
            return now()

    assert virtually(main()) == pytest.approx(0.0067 + 0.1 + 0.0056 + 0.1)


def test_a_cut_connection_publishes_its_will_and_every_call_says_so() -> None:
    async def main() -> Incoming:
        network = Network({"a": FAST}, seed=1)
        async with network.beside(Settings("server", persistent=True)) as server:
            await server.subscribe("will/#")
            async with network.behind("a")(Settings("a", Will("will/a", b"gone"))) as transport:
                publishing = asyncio.create_task(transport.publish("t", bytes(50_000)))
                await asyncio.sleep(0.01)
                network.cut("a")
                with pytest.raises(ConnectionLost, match="cut"):
                    await publishing
                with pytest.raises(ConnectionLost, match="cut"):
                    await next_message(transport)
                with pytest.raises(ConnectionLost, match="cut"):
                    await transport.subscribe("x")
            return await next_message(server)

    assert virtually(main()).payload == b"gone"


def test_a_goodbye_leaves_no_will_and_a_persistent_session_keeps_its_messages() -> None:
    async def main() -> list[bytes]:
        network = Network({"a": FAST}, seed=1)
        server = Settings("server", persistent=True)
        async with network.beside(server) as transport:
            await transport.subscribe("#")
        async with network.behind("a")(Settings("a", Will("will/a", b"gone"))) as transport:
            await transport.publish("t", b"while you were away")
        await asyncio.sleep(1)
        async with network.beside(server) as transport:
            await transport.publish("end", b"end")
            return [(await next_message(transport)).payload for _ in range(2)]

    assert virtually(main()) == [b"while you were away", b"end"]


def test_an_idle_client_pings_once_per_keepalive_and_holds_no_blocked_simulation_up() -> None:
    """Three PINGREQ and PINGRESP of 2 B each in 200 s of silence at a keepalive of 60 s."""

    async def main() -> LinkCounters:
        network = Network({"a": FAST}, seed=1)
        async with network.behind("a")(Settings("a", keepalive=60)) as transport:
            before = network.counters()["a"]
            await asyncio.sleep(200)
            after = network.counters()["a"]
            assert after.up.stream_bytes - before.up.stream_bytes == 6
            assert after.down.stream_bytes - before.down.stream_bytes == 6
            await next_message(transport)
        raise AssertionError("nobody ever writes")

    with pytest.raises(Blocked, match=r"blocked at 200\."):
        virtually(main())


def test_a_long_outage_ends_the_connection_on_both_sides() -> None:
    """The client's PINGREQ of 60 s is held up, so the broker ends the connection after 1.5 keepalives, at 90 s.

    As behind the proxy, an outage holds bytes, but not the closing of a connection.
    """
    profile = LinkProfile(name="out", up=1e6, down=1e6, rtt=0.01, outages=((10.0, 1000.0),))

    async def main() -> tuple[float, float]:
        network = Network({"a": profile}, seed=1)
        async with network.beside(Settings("server")) as server:
            await server.subscribe("will/a")
            noticed = asyncio.create_task(_noticed(server))
            async with network.behind("a")(Settings("a", Will("will/a", b""), keepalive=60)) as transport:
                waiting = asyncio.create_task(asyncio.sleep(300))  # something else that happens
                with pytest.raises(ConnectionLost, match="the broker has closed it"):
                    await next_message(transport)
                lost = now()
                await waiting
                return await noticed, lost

    async def _noticed(server: Transport) -> float:
        await next_message(server)
        return now()

    broker, client = virtually(main())
    assert broker == pytest.approx(90, abs=0.1)
    assert client == pytest.approx(90, abs=0.1)


def test_a_long_download_is_a_sign_of_life_and_so_is_a_long_upload() -> None:
    """300 kB at 4 kbit/s take ten minutes, ten keepalives, but the bytes of a message on its way are heard.

    Up it is a third of that, as the real client gives up when it hears nothing for two keepalives, though it sends.
    """

    async def main() -> list[int]:
        network = Network({"a": LinkProfile(name="slow", up=4e3, down=4e3, rtt=0.01)}, seed=1)
        async with network.beside(Settings("server")) as server, network.behind("a")(Settings("a", keepalive=60)) as a:
            await a.subscribe("big")
            await server.publish("big", bytes(300_000))
            taken = [len((await next_message(a)).payload)]
            await server.subscribe("up")
            sending = asyncio.create_task(a.publish("up", bytes(50_000)))
            taken.append(len((await next_message(server)).payload))
            await sending
            return taken

    assert virtually(main()) == [300_000, 50_000]


@pytest.mark.parametrize("keepalive", [0, 4])
def test_a_publisher_is_held_while_its_subscriber_has_too_much_waiting(keepalive: int) -> None:
    """5 kB take half a second down 80 kbit/s and go one at a time, so ten of them pile up above 20 kB; the server's
    publications beyond that are acknowledged only as the pile shrinks. With a keepalive some are let through."""

    async def main() -> tuple[int, list[float]]:
        limits = Limits(inflight_window=1, low_water=10_000, high_water=20_000)
        network = Network({"a": parse_link("80kbit/80kbit/2ms")}, seed=1, limits=limits)
        acknowledged: list[float] = []

        async def publish(server: Transport) -> None:
            for _ in range(10):
                await server.publish("big", bytes(5_000))
                acknowledged.append(now())

        async with network.beside(Settings("server", keepalive=keepalive)) as server:
            async with network.behind("a")(Settings("a")) as a:
                await a.subscribe("big")
                began, publishing = now(), asyncio.create_task(publish(server))
                taken = [len((await next_message(a)).payload) for _ in range(10)]
                await publishing
        return sum(taken), [moment - began for moment in acknowledged]

    taken, acknowledged = virtually(main())
    assert taken == 50_000
    assert acknowledged[4] == 0.0  # one is on its way, four wait: not more than 20 kB
    assert 1.0 < acknowledged[-1] < 5.5


# ---- against the real stack --------------------------------------------------------------------------------------


async def conversation(device: Connect, server: Connect, pause: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A small run's worth of packets: two connections, both directions, QoS 0 and 1, a chunk and small messages."""
    async with server(Settings("server", persistent=True)) as there:
        await there.subscribe("up/+", "pres/+")
        for life in range(2):
            will = Will("pres/a", b"lost" * 10)
            async with device(Settings(f"a-{life}", will, keepalive=60)) as here:
                await asyncio.gather(here.subscribe("down/a", "round"), here.publish("pres/a", b"online", retain=True))
                assert (await next_message(there)).payload == b"online"
                await here.publish("up/a", bytes(30_000))
                assert len((await next_message(there)).payload) == 30_000
                await here.publish("up/telemetry", bytes(300), qos=0)
                await next_message(there)
                await there.publish("round", bytes(180), retain=True)
                await there.publish("down/a", bytes(5_000))
                for _ in range(2 + life):  # the second life also gets the retained one
                    await next_message(here)
                await here.unsubscribe("round")
                await pause()
        await pause()


@asynccontextmanager
async def real_stack(profile: LinkProfile) -> AsyncIterator[Ends]:
    async with TcpBroker() as broker:
        proxy = ShapingProxy(profile, "127.0.0.1", broker.port, clock=RealClock(), seed=1, device="a")
        port = await proxy.start()
        yield connector(Endpoint("127.0.0.1", port)), connector(Endpoint("127.0.0.1", broker.port)), proxy.counters
        await proxy.close()


@asynccontextmanager
async def in_memory(profile: LinkProfile) -> AsyncIterator[Ends]:
    network = Network({"a": profile}, seed=1)
    yield network.behind("a"), network.beside, lambda: network.counters()["a"]


async def counted(
    stack: AbstractAsyncContextManager[tuple[Connect, Connect, Callable[[], LinkCounters]]],
) -> LinkCounters:
    async with stack as (device, server, counters):
        await conversation(device, server, lambda: asyncio.sleep(0.3))
        return counters()


async def test_the_counters_are_those_of_the_real_proxy_broker_and_client() -> None:
    """Equal to the byte; segments only nearly, as the real ones also depend on how fast this machine answers."""
    real = await counted(real_stack(FAST))
    same_loop = await counted(in_memory(FAST))
    with_jumps = await asyncio.to_thread(virtually, counted(in_memory(FAST)))
    for ours in (same_loop, with_jumps):
        assert ours.connections == real.connections == 2
        assert ours.up.stream_bytes == real.up.stream_bytes
        assert ours.down.stream_bytes == real.down.stream_bytes
        assert ours.up.segments == pytest.approx(real.up.segments, abs=8)
        assert ours.down.segments == pytest.approx(real.down.segments, abs=8)
