"""One study in real and in virtual time: processes and MQTT behind proxies against tasks and arithmetic.

A loaded machine is late now and then, never early, so a stage may be off in one round; off in all rounds it is the
model that is wrong. `benchmarks/validation.py` does the same with all links and large messages.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.validation import LINKS, always_too_far, boards, out_of_order, run, studies
from sim.hardware import OWN, hardwares


@pytest.fixture(autouse=True)
def slow_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(OWN, "")  # restored afterwards
    boards(tmp_path)
    yield
    hardwares.cache_clear()


@pytest.mark.parametrize(
    ("method", "rounds", "links"),
    [pytest.param("gca", 4, LINKS, id="small messages"), pytest.param("fedavg", 2, LINKS[5:], id="188 kB messages")],
)
def test_stages_bytes_and_order_agree(tmp_path: Path, method: str, rounds: int, links: tuple[str, ...]) -> None:
    found = {clock: run(study, tmp_path / clock / "study") for clock, study in studies(method, rounds, links).items()}
    real, virtual = found["real"], found["virtual"]
    assert always_too_far(real, virtual) == []
    assert real.messages == virtual.messages
    assert any(out_of_order(real, virtual, round) == [] for round in range(1, rounds + 1))
