"""A study to attack; and one thread, as in a study: the networks are small and the machine is shared."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attack.attack_tools import finished_study


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return finished_study(tmp_path / "study")
