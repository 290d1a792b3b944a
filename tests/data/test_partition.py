"""Shards are disjoint, complete, of equal size within one, and a function of (n, devices, seed) alone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import ConfigError
from sim.data import device_name, iid

ROOT = Path(__file__).parents[2]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 6), st.integers(0, 2**63 - 1))
def test_disjoint_complete_and_even(devices: int, minimum: int, surplus: int, seed: int) -> None:
    n = devices * minimum + surplus
    shards = iid(n, devices, seed, minimum)
    sizes = [len(shard) for shard in shards]
    assert len(shards) == devices
    assert sorted(np.concatenate(shards).tolist()) == list(range(n))
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= minimum
    assert all(np.array_equal(one, two) for one, two in zip(shards, iid(n, devices, seed, minimum), strict=True))


def test_another_seed_gives_other_shards_and_records_are_shuffled() -> None:
    one, two = iid(1_000, 4, 100), iid(1_000, 4, 200)
    assert not np.array_equal(one[0], two[0])
    assert not np.array_equal(one[0], np.arange(250))


def test_independent_of_the_hash_seed() -> None:
    code = "from sim.data import iid; print(b''.join(shard.tobytes() for shard in iid(100, 7, 3)).hex())"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(printed) == 1
    assert len(printed.pop().strip()) == 100 * 8 * 2


def test_too_many_devices_say_both_numbers_and_the_mend() -> None:
    with pytest.raises(ConfigError) as error:
        iid(788, 100, 100)
    message = str(error.value)
    assert "788 training records over 100 devices leave a device with 7" in message
    assert "minimum of 10" in message
    assert "at most 78 devices" in message and "data.minimum_records" in message
    assert len(iid(788, 78, 100)) == 78


def test_no_devices_and_empty_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        iid(10, 0, 1)
    with pytest.raises(ConfigError, match="with 0"):
        iid(3, 4, 1, minimum=0)


def test_device_names_count_from_one() -> None:
    assert [device_name(i) for i in (1, 42, 9_999, 12_345)] == ["dev-0001", "dev-0042", "dev-9999", "dev-12345"]
    with pytest.raises(ValueError, match="from 1"):
        device_name(0)
