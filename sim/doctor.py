"""What this machine and a broker can do, found out without risk: imports run in processes of their own, because a
package built for another processor ends the process that imports it."""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from edge_client.errors import EnvironmentFault, GcaError
from edge_client.protocol.chunks import MAX_CHUNK
from edge_client.transport.base import Settings, Transport
from edge_client.transport.mqtt import Endpoint, connector

NEEDED = ("numpy", "msgpack", "msgspec", "aiomqtt")
SERVER = ("torch", "sklearn", "safetensors", "typer")
NEEDS_MESSAGE = MAX_CHUNK + 1024
"""A chunk and its envelope must pass."""
PROBES = (NEEDS_MESSAGE, 262_144, 1_048_576)
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Finding:
    """One check. "missing" is fatal to what the line names, "note" is worth knowing."""

    what: str
    state: Literal["ok", "note", "missing"]
    detail: str


def examine_machine() -> list[Finding]:
    """Check Python, packages, memory, limits and tools."""
    findings = [Finding("python", "ok", sys.version.split()[0])]
    findings += [_import(name, "missing") for name in NEEDED]
    findings += [_import(name, "note") for name in SERVER]
    findings.append(_paho())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    findings.append(Finding("file descriptors", "ok", f"{soft} now, up to {hard}"))
    findings.append(Finding("processor cores", "ok", str(os.cpu_count())))
    findings.append(_memory())
    compiler = shutil.which("cc") or shutil.which("gcc")
    findings.append(Finding("training", "ok", f"numpy trainer; C compiler: {compiler or 'none'}"))
    gpu = shutil.which("nvidia-smi")
    findings.append(Finding("GPU", "ok" if gpu else "note", "found" if gpu else "none: clustering runs on the CPU"))
    broker = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    findings.append(Finding("mosquitto", "ok" if broker else "note", broker or "none: the embedded broker serves"))
    return findings


async def examine_broker(where: Endpoint, sizes: Sequence[int] = PROBES) -> list[Finding]:
    """Check what a broker does with QoS 1 and with messages of these sizes."""
    try:
        async with connector(where)(Settings(f"gca-doctor-{os.getpid()}", keepalive=20)) as transport:
            return [Finding("broker", "ok", f"{where} answers"), *await _probe(transport, sizes)]
    except GcaError as error:
        return [Finding("broker", "missing", str(error))]


async def require_broker(where: Endpoint) -> None:
    """Raise `EnvironmentFault` unless this broker is there and lets our largest message through: a broker that finds
    a message too large drops it without a word, and a run would wait for it."""
    for finding in await examine_broker(where, (NEEDS_MESSAGE,)):
        if finding.state == "missing":
            raise EnvironmentFault(f"{where}: {finding.what}: {finding.detail}; look with gca doctor --broker {where}")


async def _probe(transport: Transport, sizes: Sequence[int]) -> list[Finding]:
    """Send messages of growing size to ourselves. A broker that finds one too large drops it or the connection."""
    topic, findings = f"gca/v1/doctor/pres/doctor-{os.getpid()}", []
    passed = 0
    try:
        await transport.subscribe(topic)
        inbox = transport.messages()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for size in (16, *sizes):
            async with asyncio.timeout(PATIENCE_S):
                await transport.publish(topic, bytes(size))
                message = await anext(inbox)
                transport.acknowledge(message)
                if len(message.payload) != size:
                    break
            if passed == 0:
                findings.append(Finding("round trip", "ok", f"{1000 * (loop.time() - began):.1f} ms, QoS 1"))
            passed = size
    except (GcaError, TimeoutError, StopAsyncIteration):
        pass
    return [*findings, _message_limit(passed, sizes)]


def _message_limit(passed: int, sizes: Sequence[int]) -> Finding:
    """Say what the largest message that came back means."""
    if passed == sizes[-1]:
        return Finding("largest message", "ok", f"{passed} bytes and perhaps more")
    refused = next(size for size in sizes if size > passed)
    limit = f"{passed} bytes passed, {refused} did not"
    if passed >= NEEDS_MESSAGE:
        return Finding("largest message", "ok", f"{limit}; {NEEDS_MESSAGE} are needed")
    mend = "raise the broker's limit (mosquitto: max_packet_size)"
    return Finding("largest message", "missing", f"{limit}, but {NEEDS_MESSAGE} are needed: {mend}")


def _import(name: str, otherwise: Literal["note", "missing"]) -> Finding:
    code = f"import {name}; print(getattr({name}, '__version__', ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # noqa: S603
    if done.returncode == 0:
        return Finding(name, "ok", done.stdout.strip() or _version(name))
    if done.returncode < 0:
        cause = f"the import dies of {signal.Signals(-done.returncode).name}: this build is not for this processor"
        return Finding(name, otherwise, f"{cause}; install another one")
    wanted = "gca" if name in NEEDED else "gca[sim]"
    last = (done.stderr.strip().splitlines() or ["failed"])[-1]
    return Finding(name, otherwise, f"{last}; pip install '{wanted}'")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "found"


def _paho() -> Finding:
    found = _version("paho-mqtt")
    old = found.split(".")[:2] < ["2", "2"]
    why = f"{found} drops slow downloads; pip install 'paho-mqtt>=2.2'"
    return Finding("paho-mqtt", "missing" if old else "ok", why if old else found)


def _memory() -> Finding:
    from sim.emulation.workload import DEVICE_BYTES, PARENT_BYTES, available_memory

    free = available_memory()
    holds = max(0, (free - PARENT_BYTES) // DEVICE_BYTES)
    return Finding("memory", "ok", f"{free / 1e9:.1f} GB free: about {holds} device processes")
