"""The ledgers of a real run end each round at the same moment: when the device reports it."""

from collections.abc import Iterator
from itertools import accumulate

import pytest

from broker_server.study.store import StudyStore
from sim.config.study import load_study
from sim.costs.spent import instants
from sim.emulation.study import run_study
from sim.screen.progress import Quiet

ROUNDS = 3
STATES = 400
"""More bytes than the round's states take that may be on their way when a device reports."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyStore]:
    """Two devices behind 20 kbit/s down: the broadcast of some 600 B takes a quarter of a second."""
    folder = tmp_path_factory.mktemp("ledgers") / "study"
    overrides = {"devices": 2, "rounds": ROUNDS, "clock": "virtual", "link": "100kbit/20kbit/200ms",
                 "hardware": "pi-zero-2-w", "clustering.components": 20, "evaluation.every": "round"}  # fmt: skip
    run_study(load_study("demo", overrides), folder, Quiet())
    with StudyStore.open(folder) as opened:
        yield opened


def by_round(store: StudyStore, table: str, column: str, device: str, direction: str) -> list[int]:
    side = "side = 'device' AND" if table == "transfers" else ""
    query = f"SELECT round, sum({column}) FROM {table} WHERE {side} device = ? AND direction = ? GROUP BY round"
    found = dict(store.rows(query, device, direction))
    return [found.get(round, 0) for round in range(ROUNDS + 1)]


@pytest.mark.parametrize("device", ["dev-0001", "dev-0002"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_what_crossed_by_the_end_of_a_round_is_what_had_been_heard(store, device: str, direction: str) -> None:
    """The stream holds each message once, its MQTT packet a few percent more; the broadcast is in its own round."""
    told = list(accumulate(by_round(store, "transfers", "message_bytes", device, direction)))
    crossed = list(accumulate(by_round(store, "wire", "stream_bytes", device, direction)))
    for heard, seen in zip(told[1:], crossed[1:], strict=True):
        assert heard < seen < 1.25 * heard + STATES


def test_the_seconds_of_an_alignment_are_later_than_the_next_opening(store) -> None:
    (second,) = store.rows("SELECT opened_s FROM rounds WHERE round = 2")[0]
    ends = [one.seconds for one in instants(store, 1) if (one.point.round, one.point.phase) == (1, "align")]
    assert ends[-1] > second + 0.2
    assert [one.seconds for one in instants(store, 1)] == sorted(one.seconds for one in instants(store, 1))
