"""What this machine can do, found out without risk.

Imports run in processes of their own, because a package built for another processor ends the process that imports
it. So this module imports nothing but the standard library until it knows that it can.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from edge_client.errors import EnvironmentFault, pip_install
from edge_client.words import counted

NEEDED = ("numpy", "msgpack", "msgspec", "aiomqtt")
SERVER = ("torch", "sklearn", "safetensors", "typer")
OLDEST_PYTHON, OLDEST_PAHO = (3, 11), (2, 2)
IMPORT_S = 120.0


@dataclass(frozen=True)
class Finding:
    """One check. "missing" is fatal to what the line names, "note" is worth knowing."""

    what: str
    state: Literal["ok", "note", "missing"]
    detail: str


def examine_machine(data_dir: Path | None = None) -> list[Finding]:
    """Check Python, packages, memory, limits, tools and data. Raises `ConfigError` for a data folder that is none."""
    needed = [_python(), *(_import(name, "missing") for name in NEEDED), _paho()]
    sound = all(finding.state == "ok" for finding in needed)
    return [
        *needed,
        *(_import(name, "note") for name in SERVER),
        Finding("processor cores", "ok", str(os.cpu_count())),
        _with_packages("memory", _memory, sound),
        _descriptors(),
        _with_packages("training", _training, sound),
        _gpu(),
        _mosquitto(),
        _with_packages("datasets", lambda: _datasets(data_dir), sound),
    ]


def _python() -> Finding:
    found, oldest = sys.version.split()[0], ".".join(map(str, OLDEST_PYTHON))
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("python", "missing", f"{found} is too old; install {oldest} or newer")
    return Finding("python", "ok", found)


def _import(name: str, otherwise: Literal["note", "missing"]) -> Finding:
    """Import a package in a process of its own and say how it went."""
    mend = pip_install() if name in NEEDED else f"a device does without it; else: {pip_install('sim')}"
    code = f"import {name}; print(getattr({name}, '__version__', ''))"
    try:
        done = _python_says(code)
    except subprocess.TimeoutExpired:
        return Finding(name, otherwise, f"the import does not end within {IMPORT_S:g} s; {mend} anew")
    if done.returncode == 0:
        return Finding(name, "ok", done.stdout.strip() or _version(name))
    if done.returncode < 0:
        cause = f"the import dies of {signal.Signals(-done.returncode).name}: this build does not suit this processor"
        return Finding(name, otherwise, f"{cause}; install another one")
    last = (done.stderr.strip().splitlines() or ["the import fails"])[-1]
    return Finding(name, otherwise, f"{last}; {mend}")


def _python_says(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_S)  # noqa: S603


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "found"


def _paho() -> Finding:
    found = _version("paho-mqtt")
    number = re.match(r"(\d+)\.(\d+)", found)
    if number and (int(number[1]), int(number[2])) >= OLDEST_PAHO:
        return Finding("paho-mqtt", "ok", found)
    return Finding(
        "paho-mqtt", "missing", f"{found}: older than 2.2 drops slow downloads; pip install 'paho-mqtt>=2.2'"
    )


def _with_packages(what: str, look: Callable[[], Finding], sound: bool) -> Finding:
    """Look with packages that may be missing: a device has not all that a simulation needs."""
    if not sound:
        return Finding(what, "note", "not looked at without the packages above")
    try:
        return look()
    except ModuleNotFoundError as error:
        return Finding(what, "note", f"not looked at without {error.name}, which a device does not need")


def _memory() -> Finding:
    from sim.emulation.workload import DEVICE_BYTES, PARENT_BYTES, available_memory

    try:
        free = available_memory()
    except (OSError, EnvironmentFault):
        return Finding("memory", "note", "this system does not say how much is free; `gca simulate` needs Linux")
    holds = max(0, (free - PARENT_BYTES) // DEVICE_BYTES)
    return Finding(
        "memory",
        "ok" if holds else "note",
        f"{free / 1e9:.1f} GB free: about {counted(holds, 'device process', 'device processes')}",
    )


def _descriptors() -> Finding:
    soft, hard = ("any" if n == resource.RLIM_INFINITY else str(n) for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return Finding("file descriptors", "ok", f"{soft} now, up to {hard}")


def _training() -> Finding:
    from edge_client.errors import ConfigError
    from edge_client.model.choice import dense_engine

    try:
        engine = dense_engine()
    except ConfigError as error:
        return Finding("training", "missing", str(error))
    return Finding("training", "note" if engine.name == "numpy" else "ok", str(engine))


def _gpu() -> Finding:
    if not shutil.which("nvidia-smi"):
        return Finding("GPU", "note", "none: clustering runs on the CPU")
    try:
        done = _python_says("import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')")
    except subprocess.TimeoutExpired:
        return Finding("GPU", "note", "found, but PyTorch does not answer")
    name = done.stdout.strip() if done.returncode == 0 else ""
    return Finding("GPU", "ok" if name else "note", name or "found, but this PyTorch cannot use it")


def _mosquitto() -> Finding:
    found = _tool("mosquitto")
    return Finding("mosquitto", "ok" if found else "note", found or "none: the embedded broker serves")


def _tool(*names: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def _datasets(data_dir: Path | None) -> Finding:
    from sim.data.catalogue import describe

    states: dict[str, list[str]] = {}
    for one in describe(data_dir, verify=False):
        states.setdefault(one.state, []).append(one.name)
    text = "; ".join(f"{state}: {', '.join(names)}" for state, names in states.items())
    return Finding("datasets", "ok" if set(states) == {"present"} else "note", f"{text}; see gca datasets")
