"""One study in real and in virtual time: processes and MQTT behind proxies against tasks and arithmetic.

A loaded machine is late, never early, so a stage may be off in one round, or with a heavy load in all of a run; off in
all rounds of several runs it is the model that is wrong. `benchmarks/validation.py` does the same with all links and
large messages.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.validation import LINKS, always_too_far, boards, out_of_order, run, studies
from sim.config.hardware import OWN, hardwares


@pytest.fixture(autouse=True)
def slow_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(OWN, "")  # restored afterwards
    boards(tmp_path)
    yield
    hardwares.cache_clear()


ATTEMPTS = 3
"""Real runs, the second and third only where the machine was too busy for the one before."""


@pytest.mark.parametrize(
    ("method", "rounds", "links"),
    [pytest.param("gca", 4, LINKS, id="small messages"), pytest.param("fedavg", 2, LINKS[5:], id="188 kB messages")],
)
def test_stages_bytes_and_order_agree(tmp_path: Path, method: str, rounds: int, links: tuple[str, ...]) -> None:
    """Of each device, each stage has to agree in one round of one run, and the order in one round."""
    chosen = studies(method, rounds, links)
    virtual = run(chosen["virtual"], tmp_path / "virtual" / "study")
    wrong, in_order = None, False
    for attempt in range(1, ATTEMPTS + 1):
        real = run(chosen["real"], tmp_path / f"real {attempt}" / "study")
        assert real.messages == virtual.messages
        off = set(always_too_far(real, virtual))
        wrong = off if wrong is None else wrong & off
        in_order |= any(out_of_order(real, virtual, round) == [] for round in range(1, rounds + 1))
        if not wrong and in_order:
            return
        print(f"real run {attempt}: too far off in every round so far: {sorted(wrong)}; in order: {in_order}")
    assert (wrong, in_order) == (set(), True)
