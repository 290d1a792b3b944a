"""Where a fleet's threads run: one to a core when they fill the machine, anywhere when they do not."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from sim.fleet.compute import cores, training_threads

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no threads")


def places(pool: ThreadPoolExecutor, threads: int) -> list[set[int]]:
    """Return the cores that each thread of a pool may use."""
    together = Barrier(threads)

    def place() -> set[int]:
        together.wait(10)  # so that no thread takes two of these
        return os.sched_getaffinity(0)

    with pool:
        return [asked.result() for asked in [pool.submit(place) for _ in range(threads)]]


def test_as_many_threads_as_cores_have_one_each() -> None:
    whole = os.sched_getaffinity(0)
    found = places(training_threads(cores()), cores())
    assert sorted(found, key=min) == [{core} for core in sorted(whole)]
    assert os.sched_getaffinity(0) == whole  # this thread goes where it likes


def test_more_threads_than_cores_go_anywhere() -> None:
    found = places(training_threads(cores() + 1), cores() + 1)
    assert found == [os.sched_getaffinity(0)] * (cores() + 1)
