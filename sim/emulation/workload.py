"""What a study asks of the machine: the shards of its devices, a digest of them, and a check that they fit before
anything starts."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from edge_client.errors import EnvironmentFault
from sim.config.study import Study
from sim.data import Dataset
from sim.data.partition import device_name, shares

DEVICE_BYTES = 25_000_000
"""Private memory of one device process: 15 MB by `benchmarks/footprint.py`, and room for its records."""
PARENT_BYTES = 450_000_000
"""The server with torch, and the network process."""
DEVICE_DESCRIPTORS = 8
"""Of the parent and the network process together, per device: pipes, sentinels and both ends of the link."""
SPARE_DESCRIPTORS = 64
TASK_BYTES = 1_500_000
"""Memory of one device that is a task: its model, Adam's moments and its records, and half as much again."""
IMAGE_DEVICE_BYTES, IMAGE_TASK_BYTES = 200_000_000, 12_000_000
"""The same where devices train on images: a process has activations of its own, 160 MB in all by that benchmark; a
task has a model of 1.3 MB, its moments and its records."""
IMAGE_TRAINING_BYTES = 250_000_000
"""Activations of the threads that train tasks on images."""


@dataclass(frozen=True)
class Shard:
    """One device's records on disk."""

    device: str
    samples: int
    path: Path


def write_shards(study: Study, dataset: Dataset, directory: Path) -> tuple[tuple[Shard, ...], Path]:
    """Write each device's training records, and the shared test set, as .npz files; return both."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = shares(study, dataset)
    shards = []
    for number, rows in enumerate(parts, start=1):
        device = device_name(number)
        path = directory / f"{device}.npz"
        np.savez(path, samples=dataset.train[rows])
        shards.append(Shard(device, len(rows), path))
    test = directory / "test.npz"
    np.savez(test, test=dataset.test, labels=dataset.labels)
    return tuple(shards), test


def records_digest(shards: Sequence[Shard], test: Path) -> str:
    """Return a digest of all that a study's models are trained and judged on, to the bit: what else it depends on than
    the study's own settings, such as the version of scikit-learn, shows here."""
    found = blake2b(digest_size=8)
    for name, path in (*((shard.device, shard.path) for shard in shards), ("test", test)):
        with np.load(path) as arrays:
            for key in sorted(arrays):
                array = arrays[key]
                found.update(f"{name} {key} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()


def demands(study: Study) -> tuple[int, int]:
    """Return (bytes of memory, file descriptors of one process) that the devices of a study need."""
    images = study.as_tasks and study.training.model == "convolutional"
    memory = PARENT_BYTES + (IMAGE_TRAINING_BYTES if images else 0) + study.devices * _each(study)
    return memory, SPARE_DESCRIPTORS + (0 if study.as_tasks else study.devices * DEVICE_DESCRIPTORS)


def _each(study: Study) -> int:
    """Return the bytes of memory that one device needs."""
    if study.training.model == "convolutional":
        return IMAGE_TASK_BYTES if study.as_tasks else IMAGE_DEVICE_BYTES
    return TASK_BYTES if study.as_tasks else DEVICE_BYTES


def check_machine(study: Study) -> None:
    """Refuse what this machine cannot hold, before anything is started; raises `EnvironmentFault`."""
    devices, (memory, descriptors) = study.devices, demands(study)
    kind, each = "tasks" if study.as_tasks else "processes", _each(study)
    available = available_memory()
    if memory > available:
        raise EnvironmentFault(
            f"{devices} device {kind} need about {memory / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are "
            f"free; use at most --devices {max(1, (available - PARENT_BYTES) // each)}"
            + ("" if study.as_tasks else " or --isolation task")
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors > hard != resource.RLIM_INFINITY:
        raise EnvironmentFault(
            f"{devices} device processes need {descriptors} file descriptors, this system allows {hard}; raise the "
            f"limit (ulimit -Hn), use at most --devices {(hard - SPARE_DESCRIPTORS) // DEVICE_DESCRIPTORS}, or "
            "--isolation task"
        )
    if descriptors > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))


def available_memory() -> int:
    """Return the bytes that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise EnvironmentFault("/proc/meminfo does not say how much memory is available")
