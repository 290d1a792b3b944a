"""A store in a new folder, and a run in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from store.store_tools import PLAN

from broker_server.study.store import StudyStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StudyStore]:
    with StudyStore.create(tmp_path) as opened:
        yield opened


@pytest.fixture
def run(store: StudyStore) -> int:
    return store.begin_run(PLAN, devices=2, dataset="magic")
