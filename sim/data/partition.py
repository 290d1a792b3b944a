"""Who holds which records: disjoint shards of the training normals, one realised partition per (dataset, seed)."""

import re

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.seeds import stream
from edge_client.words import counted
from sim.config.study import Study
from sim.data.dataset import Dataset
from sim.data.non_iid import non_iid, pooled

MINIMUM_RECORDS = 10
"""Fewest records of a device. With 10, the default upload fraction of 0.1 still uploads one code."""


def device_name(i: int) -> str:
    """Return the id of the i-th device, counted from 1; ids sort as the numbers do up to 9,999 devices."""
    if i < 1:
        raise ValueError(f"devices are counted from 1, not {i}")
    return f"dev-{i:04d}"


def device_number(name: str) -> int | None:
    """Return the i of `device_name(i)`; None for a name of another kind."""
    number = re.fullmatch(r"dev-(\d{4,})", name)
    return int(number[1]) if number else None


def iid(n: int, devices: int, seed: int, minimum: int = MINIMUM_RECORDS) -> list[NDArray[np.int64]]:
    """Return `devices` disjoint uniform shards of range(n) whose sizes differ by at most one.

    Each holds at least `minimum` records; ConfigError if n does not suffice. The shards depend on (n, devices, seed)
    only, so every method of a study trains on the same ones (paper, section "Federated setting").
    """
    if devices < 1:
        raise ConfigError(f"devices is {devices}; a partition needs at least 1")
    smallest = n // devices
    if smallest < max(minimum, 1):
        raise ConfigError(
            f"{counted(n, 'training record')} over {counted(devices, 'device')} leave a device with {smallest:,}, "
            f"fewer than the minimum of {minimum:,}; use at most {counted(n // max(minimum, 1), 'device')} or lower "
            "data.minimum_records"
        )
    order = stream(seed, "partition").permutation(n).astype(np.int64)
    return np.array_split(order, devices)


def shares(study: Study, dataset: Dataset) -> list[NDArray[np.int64]]:
    """Return the row numbers of each device's records in `dataset.train`, as `data.partition` says.

    They depend on the dataset, the seed and the number of devices, not on the method. Non-IID groups are found on
    the standardised features, or on an image's pixels averaged down to 8 x 8.
    """
    minimum = study.data.minimum_records
    if study.data.partition == "iid":
        return iid(len(dataset.train), study.devices, study.seed, minimum)
    described = dataset.train if dataset.image is None else pooled(dataset.train, dataset.image)
    return non_iid(described, study.devices, study.seed, minimum)
