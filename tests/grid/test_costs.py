"""What an accuracy had cost, from a study of two devices written by hand.

Device d1 is quick, d2 slow. Seconds by stage (reconstruction, upload, wait, alignment):
round 1 opens at 10 s, and both begin: d1 2, 1, 6, 1 until 20 s; d2 4, 2, 5, 3 until 24 s.
round 2 opens at 19 s, before d2's alignment begins at 21 s; d1 begins at 20 s: 2, 1, 9, 1 until 33 s; d2 begins at
24 s: 4, 2, 4, 2 until 36 s. So d2 has trained by 28 s and takes the broadcast in from 34 to 36 s.
Each device sends 24 and receives 8 payload bytes a round, and 100 B cross its link in each round.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_server.plan import RunPlan
from broker_server.study.records import Outcome, RoundRecord
from broker_server.study.store import StudyStore
from edge_client.protocol.messages import Evaluation, Tally, Telemetry
from sim.costs.energy import power
from sim.costs.spent import Instant, first_to_reach, instants
from sim.links.profiles import profile

SHEET = (
    Tally(direction="up", kind="upload", messages=1, payload_bytes=24, message_bytes=50),
    Tally(direction="down", kind="broadcast", messages=1, payload_bytes=8, message_bytes=20),
    Tally(direction="up", kind="telemetry", messages=1, payload_bytes=0, message_bytes=999),
)
STAGES = {
    (1, "d1"): (2.0, 1.0, 6.0, 1.0), (1, "d2"): (4.0, 2.0, 5.0, 3.0),
    (2, "d1"): (2.0, 1.0, 9.0, 1.0), (2, "d2"): (4.0, 2.0, 4.0, 2.0),
}  # fmt: skip
REPORTED = {(1, "d1"): 20.0, (1, "d2"): 24.0, (2, "d1"): 33.0, (2, "d2"): 36.0}
NAMES = ("reconstruction", "upload", "wait", "alignment")
ACCURACY = {(1, "recon", 1): 0.4, (1, "recon", 2): 0.5, (1, "align", 1): 0.6, (1, "align", 2): 0.55,
            (2, "recon", 1): 0.5, (2, "recon", 2): 0.7, (2, "align", 1): 0.5, (2, "align", 2): 0.65}  # fmt: skip


def spans(seconds: tuple[float, ...]) -> dict[str, tuple[float, float]]:
    """How long before the end of the last stage each of them began and ended."""
    return {name: (sum(seconds[n:]), sum(seconds[n + 1 :])) for n, name in enumerate(NAMES)}


@contextmanager
def written(folder: Path, *, spanned: bool = True) -> Iterator[StudyStore]:
    with StudyStore.create(folder) as store:
        run = store.begin_run(RunPlan("demo", "00000000", "gca", 100, 2), 2, "breast_cancer")
        for round, opened in ((1, 10.0), (2, 19.0)):
            store.record_round(
                run, RoundRecord(round, opened, opened + 6, opened + 7, None, ("d1", "d2"), (), (), (),
                                 {"d1": SHEET, "d2": SHEET}, {})
            )  # fmt: skip
            for device in ("d1", "d2"):
                evaluations = tuple(
                    Evaluation(phase=phase, epoch=epoch, loss=0.5, threshold=1.0, accuracy=accuracy, auroc=accuracy,
                               average_precision=accuracy)
                    for (r, phase, epoch), accuracy in ACCURACY.items() if r == round
                )  # fmt: skip
                store.record_telemetry(
                    run,
                    Telemetry(run="demo.00000000", round=round, device=device, seq=round, outcome="completed",
                              spent_s=dict(zip(NAMES, STAGES[round, device], strict=True)),
                              spans_s=spans(STAGES[round, device]) if spanned else {}, tallies=SHEET,
                              evaluations=evaluations, ignored={}, state_sha256=""),
                    REPORTED[round, device],
                )  # fmt: skip
                store.record_wire(run, round, device, "up", 70, 80, 1, 20)
        store.finish(run, Outcome(True, 2, 45.0), 50.0, "cd" * 32)
        yield store


@pytest.fixture
def found(tmp_path: Path) -> list[Instant]:
    with written(tmp_path) as store:
        return instants(store, 1)


def test_bytes_of_a_round_count_from_its_exchange_on(found: list[Instant]) -> None:
    by_instant = {(one.point.round, one.point.phase): one for one in found}
    bytes_of = {key: (one.payload_bytes, one.message_bytes, one.wire_bytes) for key, one in by_instant.items()}
    assert bytes_of == {
        (1, "recon"): (0, 0, 0), (1, "align"): (64, 140, 200),
        (2, "recon"): (64, 140, 200), (2, "align"): (128, 280, 400),
    }  # fmt: skip


def test_seconds_run_until_the_slowest_device_had_got_so_far(found: list[Instant]) -> None:
    assert [one.seconds for one in found] == [12.0, 14.0, 22.5, 24.0, 26.0, 28.0, 35.0, 36.0]


def test_where_no_device_says_when_the_openings_stand_for_it(tmp_path: Path) -> None:
    with written(tmp_path, spanned=False) as store:
        assert [one.seconds for one in instants(store, 1)] == [10.0] * 4 + [19.0] * 4


def test_the_first_instant_that_reaches_a_target_is_the_answer(found: list[Instant]) -> None:
    first = first_to_reach(found, 0.55)
    assert first is not None and (first.point.round, first.point.phase, first.point.epoch) == (1, "align", 1)
    assert (first.wire_bytes, first.seconds) == (200, 22.5)


def test_what_was_never_reached_has_no_cost(found: list[Instant]) -> None:
    assert first_to_reach(found, 0.71) is None


def test_joules_add_up_over_devices_and_rounds(tmp_path: Path) -> None:
    """Pi Zero 2 W: 2.33 W at work, 0.60 W waiting; ble-1m-peak is 1 Mbit/s: 100 B are 0.8 ms of 24.1 mW up.

    Round 1 as a whole: work 3 + 7 s, waiting 7 + 7 s; round 2 up to the end of its reconstruction: 2 + 4 s.
    """
    with written(tmp_path) as store:
        powers = {device: power("ble-1m-peak", "pi-zero-2-w") for device in ("d1", "d2")}
        found = instants(store, 1, powers)
    at = next(one for one in found if (one.point.round, one.point.phase, one.point.epoch) == (2, "recon", 2))
    assert at.energy is not None
    rate = profile("ble-1m-peak").up
    assert rate is not None
    assert at.energy.parts["compute"] == pytest.approx((10 + 6) * 2.33)
    assert at.energy.parts["waiting"] == pytest.approx(14 * 0.60)
    assert at.energy.parts["transmit"] == pytest.approx(2 * 100 * 8 / rate * 0.0241)
    assert at.energy.unknown == ("tail",)
