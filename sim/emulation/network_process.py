"""The network of an emulation as a process: the embedded broker (unless a real one is used) and every device's link.

It is apart from the server's process so that clustering cannot delay a packet.
"""

import asyncio
from multiprocessing.connection import Connection

import msgspec

from broker_server.broker.tcp import TcpBroker
from edge_client.clock import RealClock
from edge_client.errors import GcaError
from sim.emulation.child import begin, die_with_parent
from sim.emulation.pipe import (
    Counters,
    CountersPlease,
    NetworkFailed,
    NetworkUp,
    Pipe,
    ToNetwork,
)
from sim.links.profiles import link
from sim.links.proxy import ShapingProxy


class NetworkSpec(msgspec.Struct, frozen=True):
    """`links` maps each device to its link's name; `broker` is (host, port) of a real broker, None for our own;
    `began_s` is for how long the run has gone on already."""

    links: dict[str, str]
    broker: tuple[str, int] | None
    seed: int
    began_s: float = 0.0


def main(spec: bytes, connection: Connection) -> None:
    """Entry point of the process."""
    begin("network")
    pipe: Pipe[ToNetwork] = Pipe(connection, ToNetwork)
    try:
        asyncio.run(_run(msgspec.msgpack.decode(spec, type=NetworkSpec), pipe))
    except (GcaError, OSError) as error:
        pipe.send(NetworkFailed(str(error)))
        raise SystemExit(1) from None


async def _run(spec: NetworkSpec, pipe: Pipe[ToNetwork]) -> None:
    die_with_parent()
    broker = TcpBroker()
    host, port = spec.broker or ("127.0.0.1", await broker.start())
    clock = RealClock()
    proxies = {
        device: ShapingProxy(link(name), host, port, clock=clock, seed=spec.seed, device=device, began_s=spec.began_s)
        for device, name in spec.links.items()
    }
    ports = {device: await proxy.start() for device, proxy in proxies.items()}
    closed = asyncio.Event()

    def obey(message: ToNetwork) -> None:
        match message:
            case CountersPlease(device):
                asked = proxies if device is None else (device,)
                pipe.send(Counters({name: proxies[name].counters() for name in asked}))

    pipe.listen(obey, closed.set)
    pipe.send(NetworkUp(f"mqtt://{host}:{port}", ports))
    await closed.wait()
    for proxy in proxies.values():
        await proxy.close()
    await broker.close()
