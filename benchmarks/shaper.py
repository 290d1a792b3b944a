"""How exactly the shaping proxy keeps a link's rate, and what it costs.

    python benchmarks/shaper.py            # all, about 2 minutes
    python benchmarks/shaper.py --proxies 50

First a 187 kB message at 50 kbit/s, 256 kbit/s and 1 Mbit/s with 50 ms each way, against the link model and against
what the kernel's token bucket took. Then many proxies of 1 Mbit/s in one process, beside their senders and receivers.
"""

import argparse
import asyncio
import time

from edge_client.clock import RealClock
from sim.links.link import LinkState, plan
from sim.links.profiles import LinkProfile, parse_link, uplink
from sim.links.proxy import ShapingProxy

MESSAGE = 187_015  # 187 kB and an MQTT header
KERNEL = {"50kbit/50kbit/100ms": 30.931, "256kbit/256kbit/100ms": 6.058, "1mbit/1mbit/100ms": 1.589}


class Receiver:
    """A server that notes who sent on each connection, how much, and when the last of it came."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[tuple[int, int, float]] = asyncio.Queue()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(4)
        total, last = len(head), 0.0
        while data := await reader.read(65536):
            total, last = total + len(data), time.monotonic()
        self.ended.put_nowait((int.from_bytes(head, "big"), total, last))
        writer.close()


async def transfers(shape: LinkProfile, nbytes: int, count: int) -> list[float]:
    """Return the seconds of `count` transfers at once, each over a link of its own."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    proxies = [ShapingProxy(shape, "127.0.0.1", port, clock=RealClock(), seed=0, device=f"d{n}") for n in range(count)]
    writers = []
    for proxy in proxies:
        _, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
        writers.append(writer)
    begun = []
    for sender, writer in enumerate(writers):
        begun.append(time.monotonic())
        writer.write(sender.to_bytes(4, "big") + bytes(nbytes - 4))
        writer.write_eof()
        await asyncio.sleep(0)
    seconds = []
    for _ in range(count):
        sender, total, last = await receiver.ended.get()
        assert total == nbytes
        seconds.append(last - begun[sender])
    for writer in writers:
        writer.close()
    for proxy in proxies:
        await proxy.close()
    server.close()
    return seconds


def modelled(shape: LinkProfile, nbytes: int) -> float:
    """Return the link model's seconds."""
    return plan(LinkState(uplink(shape)), nbytes, 0.0)[1].arrive


async def one_link() -> None:
    print(f"{MESSAGE} B         achieved s   of model   of kernel")
    for name, kernel in KERNEL.items():
        shape = parse_link(name)
        (seconds,) = await transfers(shape, MESSAGE, 1)
        model = 100 * (seconds / modelled(shape, MESSAGE) - 1)
        print(f"{name:22} {seconds:9.3f}  {model:+7.2f} %  {100 * (seconds / kernel - 1):+8.2f} %")


async def many_links(counts: list[int]) -> None:
    shape = parse_link("1mbit/1mbit/100ms")
    nbytes = 1_000_000
    print(f"\nproxies of 1 Mbit/s, {nbytes} B each; CPU of proxies, senders and receivers together")
    for count in counts:
        cpu, wall = time.process_time(), time.monotonic()
        seconds = sorted(await transfers(shape, nbytes, count))
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        model = modelled(shape, nbytes)
        mean, worst = 100 * (sum(seconds) / count / model - 1), 100 * (seconds[-1] / model - 1)
        segments = count * nbytes / 1448
        print(
            f"{count:4}: mean {mean:+.2f} %, worst {worst:+.2f} %, "
            f"{100 * cpu / wall:.0f} % of a core, {1e6 * cpu / segments:.0f} us per segment"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxies", type=int, nargs="*", help="only this part, with these numbers of proxies")
    arguments = parser.parse_args()
    if arguments.proxies is None:
        asyncio.run(one_link())
    asyncio.run(many_links(arguments.proxies or [1, 50, 200]))
