"""The embedded broker beside mosquitto: processor time of the broker for small messages and for uploads.

    python -m benchmarks.broker

Both run at once on this machine and take turns, so the ratios hold on a noisy one; the absolute numbers do not.
Linux only: the processor time of the broker's process is read from /proc.
"""

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from broker_server.broker import packets as mqtt
from broker_server.broker.encode import encode
from broker_server.broker.mosquitto import mosquitto_conf
from broker_server.broker.parse import PacketParser
from broker_server.broker.tcp import serve
from edge_client.errors import EnvironmentFault

REPETITIONS = 3
SMALL_MESSAGES, SMALL_BYTES, PUBLISHERS, WINDOW = 10_000, 100, 10, 20
UPLOADS, UPLOAD_BYTES = 50, 1_400_000
FAN_OUT = 50


class Client:
    """A client that costs little: it parses what it gets and acknowledges it, nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser = PacketParser(mqtt.MAX_REMAINING_LENGTH)

    @classmethod
    async def connect(cls, port: int, name: str, topic: str | None = None) -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client._writer.write(encode(mqtt.Connect(name)))
        await client.take(mqtt.ConnAck, 1)
        if topic is not None:
            client._writer.write(encode(mqtt.Subscribe(1, ((topic, 1),))))
            await client.take(mqtt.SubAck, 1)
        return client

    async def take(self, kind: type[mqtt.Packet], count: int) -> None:
        while count > 0:
            data = await self._reader.read(1 << 20)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            for packet in self._parser.feed(data):
                count -= isinstance(packet, kind)
                if isinstance(packet, mqtt.Publish) and packet.qos:
                    self._writer.write(encode(mqtt.PubAck(packet.packet_id)))

    async def publish(self, topic: str, payload: bytes, count: int) -> None:
        """Send `count` messages of QoS 1, a window at a time."""
        while count > 0:
            batch = min(count, WINDOW)
            self._writer.write(
                b"".join(encode(mqtt.Publish(topic, payload, 1, packet_id=n)) for n in range(1, batch + 1))
            )
            await self._writer.drain()
            await self.take(mqtt.PubAck, batch)
            count -= batch

    def close(self) -> None:
        self._writer.close()


async def small_messages(port: int) -> int:
    """Ten publishers, one subscriber; returns the number of messages."""
    reader = await Client.connect(port, "reader", "t/#")
    writers = [await Client.connect(port, f"w{n}") for n in range(PUBLISHERS)]
    share = SMALL_MESSAGES // PUBLISHERS
    await asyncio.gather(
        reader.take(mqtt.Publish, share * PUBLISHERS),
        *(writer.publish(f"t/{n}", bytes(SMALL_BYTES), share) for n, writer in enumerate(writers)),
    )
    for client in (reader, *writers):
        client.close()
    return share * PUBLISHERS


async def uploads(port: int) -> int:
    """Fifty devices send one model each to one server."""
    reader = await Client.connect(port, "reader", "up/#")
    writers = [await Client.connect(port, f"w{n}") for n in range(UPLOADS)]
    await asyncio.gather(
        reader.take(mqtt.Publish, UPLOADS),
        *(writer.publish(f"up/{n}", bytes(UPLOAD_BYTES), 1) for n, writer in enumerate(writers)),
    )
    for client in (reader, *writers):
        client.close()
    return UPLOADS


async def fan_out(port: int) -> int:
    """One server sends one model to fifty devices."""
    readers = [await Client.connect(port, f"r{n}", "bc") for n in range(FAN_OUT)]
    writer = await Client.connect(port, "server")
    await asyncio.gather(
        writer.publish("bc", bytes(UPLOAD_BYTES), 1), *(reader.take(mqtt.Publish, 1) for reader in readers)
    )
    for client in (writer, *readers):
        client.close()
    return FAN_OUT


def processor_seconds(pid: int) -> float:
    """All threads of a process; nanoseconds on the run queue's own clock, finer than the ticks of /proc/<pid>/stat."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def wait_for(port: int) -> None:
    for _ in range(500):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    raise EnvironmentFault(f"no broker came up on port {port}")


async def measure(brokers: dict[str, tuple[int, int]]) -> None:
    """`brokers`: name -> (process id, port)."""
    jobs: dict[str, Callable[[int], Coroutine[None, None, int]]] = {
        "QoS 1, 100 B": small_messages,
        "upload 50 x 1.4 MB": uploads,
        "fan-out 1.4 MB x 50": fan_out,
    }
    print(f"{'':22}{'':12}{'us/message':>12}{'wall s':>10}")
    for title, job in jobs.items():
        cpu: dict[str, list[float]] = {name: [] for name in brokers}
        wall: dict[str, list[float]] = {name: [] for name in brokers}
        for _ in range(REPETITIONS):
            for name, (pid, port) in brokers.items():
                cpu_before, wall_before = processor_seconds(pid), time.perf_counter()
                messages = await job(port)
                wall[name].append(time.perf_counter() - wall_before)
                cpu[name].append((processor_seconds(pid) - cpu_before) / messages * 1e6)
        for name in brokers:
            print(f"{title:22}{name:12}{statistics.median(cpu[name]):12.1f}{statistics.median(wall[name]):10.3f}")
        if "mosquitto" in brokers:
            ratios = [ours / theirs for ours, theirs in zip(cpu["embedded"], cpu["mosquitto"], strict=True)]
            print(
                f"{'':22}embedded / mosquitto: {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
            )


def main() -> None:
    mosquitto = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    with tempfile.TemporaryDirectory() as folder:
        ports = {"embedded": free_port()}
        commands = {"embedded": [sys.executable, "-m", "benchmarks.broker", "--serve", str(ports["embedded"])]}
        if mosquitto is None:
            print("mosquitto is not on PATH: no ratios")
        else:
            ports["mosquitto"] = free_port()
            config = Path(folder) / "mosquitto.conf"
            config.write_text(mosquitto_conf(ports["mosquitto"], user="root" if os.geteuid() == 0 else None))
            commands["mosquitto"] = [mosquitto, "-c", str(config)]
        processes = {name: subprocess.Popen(command, stderr=subprocess.DEVNULL) for name, command in commands.items()}
        try:

            async def run() -> None:
                for port in ports.values():
                    await wait_for(port)
                await measure({name: (process.pid, ports[name]) for name, process in processes.items()})

            asyncio.run(run())
        finally:
            for process in processes.values():
                process.terminate()
                process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", type=int, metavar="PORT", help="only be the embedded broker, on this port")
    if (port := parser.parse_args().serve) is not None:
        asyncio.run(serve("127.0.0.1", port))
    else:
        main()
