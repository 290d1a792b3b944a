"""The non-IID shares keep their promises: complete, disjoint, ten to one, alike within a device, and reproducible."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from sim.config.study import load_study
from sim.data import Dataset, iid, shares
from sim.data.non_iid import apportion, group, hand_out, non_iid, pooled, quotas

ROOT = Path(__file__).parents[2]
Loader = Callable[[str], Dataset]


def blobs(n: int, kinds: int = 12) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return n records around `kinds` distant centres, and the kind of each."""
    rng = np.random.default_rng(n)
    kind = rng.integers(0, kinds, n)
    return (rng.normal(0, 30, (kinds, 4))[kind] + rng.normal(size=(n, 4))).astype(np.float32), kind


def strangeness(parts: list[NDArray[np.int64]], kind: NDArray[np.int64]) -> float:
    """Return the mean total variation distance between a device's mix of kinds and everyone's: 0 alike, 1 disjoint."""
    kinds = kind.max() + 1
    everyone = np.bincount(kind, minlength=kinds) / len(kind)
    return float(
        np.mean([np.abs(np.bincount(kind[part], minlength=kinds) / len(part) - everyone).sum() / 2 for part in parts])
    )


# Quotas


def test_quotas_by_hand() -> None:
    """Three devices, 444 records: the series is 1 : 10^-1/2 : 10^-1, which sums to 1.41623.

    444 / 1.41623 = 313.51, so that the floors are 313, 99 and 31; ten times the smallest is 310, and the 4 records
    then left over go to the one device between.
    """
    assert quotas(444, 3, 10).tolist() == [310, 103, 31]


@given(st.integers(3, 80), st.integers(1, 30), st.integers(0, 10_000))
def test_quotas_are_ten_to_one_and_complete(devices: int, minimum: int, surplus: int) -> None:
    n = 10 * devices * minimum + surplus
    sizes = quotas(n, devices, minimum)
    assert sizes.sum() == n and len(sizes) == devices
    assert sizes.max() == sizes[0] == 10 * sizes[-1] and sizes[-1] == sizes.min() >= minimum


def test_one_and_two_devices() -> None:
    assert quotas(25, 1, 10).tolist() == [25]
    assert quotas(110, 2, 10).tolist() == [100, 10]
    assert quotas(115, 2, 10).tolist() == [105, 10]


def test_too_few_records_say_both_numbers_and_the_mend() -> None:
    with pytest.raises(ConfigError, match=r"788 training records over 20 devices .*10:1 leave a device with 9.*iid"):
        quotas(788, 20, 10)
    with pytest.raises(ConfigError, match="at least 1"):
        quotas(10, 0, 1)


# Handing out


def test_apportion_by_hand() -> None:
    """7 by 5 : 3 : 2 is 3.5, 2.1 and 1.4: the floors 3, 2, 1 and one more to the largest remainder, the first."""
    assert apportion(7, np.array([5.0, 3.0, 2.0])).tolist() == [4, 2, 1]
    assert apportion(2, np.array([1.0, 1.0, 1.0])).tolist() == [1, 1, 0]


def test_what_a_full_device_cannot_take_goes_to_the_others() -> None:
    """The larger group (6) fills device 0 (4) and then, liking nobody else, what room there is (1 : 3)."""
    counts = hand_out(np.array([2, 6]), np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), np.array([4, 1, 3]))
    assert counts.sum(axis=1).tolist() == [2, 6] and counts.sum(axis=0).tolist() == [4, 1, 3]
    assert counts[1].tolist() == [4, 1, 1]


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_rows_and_columns_of_what_is_handed_out(kinds: int, devices: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(1, 50, kinds)
    sizes = rng.multinomial(groups.sum(), np.full(devices, 1 / devices))
    likes = rng.dirichlet(np.full(devices, 0.1), kinds)
    counts = hand_out(groups, likes, sizes)
    assert (counts >= 0).all()
    assert counts.sum(axis=1).tolist() == groups.tolist() and counts.sum(axis=0).tolist() == sizes.tolist()


# The whole


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 22), st.integers(0, 2**63 - 1))
def test_disjoint_complete_and_no_device_empty(devices: int, seed: int) -> None:
    described, _ = blobs(900)
    parts = non_iid(described, devices, seed, 10)
    assert sorted(np.concatenate(parts).tolist()) == list(range(900))
    assert len(parts) == devices and min(map(len, parts)) >= 10
    assert all(np.array_equal(one, two) for one, two in zip(parts, non_iid(described, devices, seed, 10), strict=True))


def test_kinds_are_found_and_stay_together() -> None:
    described, kind = blobs(3_000)
    parts = non_iid(described, 20, 100, 10)
    assert strangeness(parts, kind) > 0.6
    assert strangeness(iid(3_000, 20, 100), kind) < 0.15


def test_groups_are_as_many_as_devices_up_to_twenty() -> None:
    described = np.random.default_rng(1).normal(size=(2_000, 3)).astype(np.float32)
    assert [group(described, k, 7).max() + 1 for k in (1, 8, 20)] == [1, 8, 20]
    assert group(np.zeros((30, 3), np.float32), 1, 7).tolist() == [0] * 30


def test_another_seed_gives_another_partition() -> None:
    described, _ = blobs(900)
    one, two = non_iid(described, 8, 100, 10), non_iid(described, 8, 200, 10)
    assert [len(part) for part in one] != [len(part) for part in two]


def test_independent_of_threads_and_hash_seed() -> None:
    code = (
        "import numpy as np; from sim.data.non_iid import non_iid;"
        "x = np.random.default_rng(2).normal(size=(3000, 6)).astype(np.float32);"
        "print(b''.join(part.tobytes() for part in non_iid(x, 20, 3, 10)).hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed, threads in (("0", "1"), ("1", "2"))
    }
    assert len(printed) == 1 and len(printed.pop().strip()) == 3_000 * 8 * 2


@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (2, 9, 13)])
def test_pooling_is_adaptive_average_pooling(image: tuple[int, int, int]) -> None:
    flat = np.random.default_rng(3).normal(size=(5, int(np.prod(image)))).astype(np.float32)
    theirs = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(flat).reshape(5, *image), 8)
    np.testing.assert_allclose(pooled(flat, image), theirs.reshape(5, -1).numpy(), atol=1e-6)


# A study's shares


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["academic", "magic"])
def test_published_files_are_shared_out_unevenly(real: Loader, name: str) -> None:
    data = real(name)
    study = load_study(f"paper/{name}", {"data.partition": "non_iid"})
    parts = shares(study, data)
    sizes = [len(part) for part in parts]
    assert max(sizes) == 10 * min(sizes) and sum(sizes) == len(data.train)
    kind = group(data.train, 10, study.seed)
    assert strangeness(parts, kind) > 0.5 > 0.2 > strangeness(iid(len(data.train), 10, study.seed), kind)
    changed = {"data.partition": "non_iid", "training.upload_fraction": 0.9, "clustering.algorithm": "kmeans"}
    others = shares(load_study(f"paper/{name}", changed), data)
    assert all(np.array_equal(one, two) for one, two in zip(parts, others, strict=True))
