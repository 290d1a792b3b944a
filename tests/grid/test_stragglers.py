"""Who was slow, how long things took and what was of no use, from a study of eleven devices written by hand.

Rounds 1 to 3 open at 0, 100 and 200 s and take 10, 20 and 90 s. All devices are asked in each. The upload of device
d07 is late in round 2, of d03 missing in round 3; so the two of eleven (a tenth, rounded up) that are slowest are
those, with 2 of 3 accepted. Every upload is 50 B, sent in 5 s that end n seconds after the opening for dNN.
"""

from pathlib import Path

import pytest

from broker_server.plan import RunPlan
from broker_server.study.records import RoundRecord
from broker_server.study.store import StudyStore
from edge_client.protocol.messages import Evaluation, Tally, Telemetry
from sim.costs.stragglers import Waste, round_quantiles, stage_quantiles, stragglers, waste

DEVICES = tuple(f"d{n:02d}" for n in range(1, 12))
ROUNDS = {1: (0.0, 10.0), 2: (100.0, 120.0), 3: (200.0, 290.0)}
LATE, MISSING = (2, "d07"), (3, "d03")


def tally(kind: str, size: int) -> Tally:
    return Tally(direction="up", kind=kind, messages=1, payload_bytes=0, message_bytes=size)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> StudyStore:
    store = StudyStore.create(tmp_path)
    run = store.begin_run(RunPlan("demo", "00000000", "gca", 100, 3), len(DEVICES), "breast_cancer")
    for round, (opened, published) in ROUNDS.items():
        late = tuple(device for device in DEVICES if (round, device) == LATE)
        missing = tuple(device for device in DEVICES if (round, device) == MISSING)
        accepted = tuple(device for device in DEVICES if device not in (*late, *missing))
        counts = {"duplicate": 4} if round == 2 else {}
        server = {"d05": (tally("ignored", 30),)} if round == 1 else {}
        store.record_round(
            run, RoundRecord(round, opened, published, published, None, accepted, late, (), missing, server, counts)
        )
        for number, device in enumerate(DEVICES, start=1):
            accuracy = (0.5 + 0.01 * number) if round == 3 else 0.1
            judged = Evaluation(phase="recon", epoch=1, loss=0.5, threshold=1.0, accuracy=accuracy, auroc=0.5,
                                average_precision=0.5)  # fmt: skip
            sheet = () if (round, device) == MISSING else (tally("upload", 50), tally("telemetry", 999))
            told = Telemetry(
                run="demo.00000000", round=round, device=device, seq=round, outcome="completed",
                spent_s={"upload": 5.0, "evaluate": 7.0}, spans_s={"upload": (5.0, 0.0)}, tallies=sheet,
                evaluations=(judged,), ignored={}, state_sha256="",
            )  # fmt: skip
            store.record_telemetry(run, told, opened + number)
    return store


def test_the_slowest_are_those_accepted_least_often(store: StudyStore) -> None:
    found = stragglers(store, 1)
    assert found is not None and found.devices == ("d03", "d07")
    assert found.participation == pytest.approx(2 / 3)
    assert found.participation_of_all == pytest.approx(31 / 33)
    assert found.accuracy == pytest.approx((0.53 + 0.57) / 2)
    assert found.accuracy_of_all == pytest.approx(0.5 + 0.01 * 6)


def test_of_equals_the_last_to_deliver_are_the_slowest(tmp_path: Path, store: StudyStore) -> None:
    with store._transaction() as write:
        write.execute("UPDATE participants SET fate = 'accepted'")
    found = stragglers(store, 1)
    assert found is not None and found.devices == ("d10", "d11") and found.participation == 1.0


def test_what_was_of_no_use_by_hand(store: StudyStore) -> None:
    """50 B came late; with those go 30 B that the server ignored; four chunks came twice."""
    assert waste(store, 1) == Waste(late=50, unused=80, repeated=4)


def test_quantiles_are_of_rounds_and_of_what_a_device_in_the_field_does(store: StudyStore) -> None:
    """Of 10, 20 and 90 s the median is 20 s, and 90 % of the way from it to 90 s reaches 76 s at p90."""
    assert round_quantiles(store, 1) == pytest.approx((20.0, 76.0, 88.6))
    assert stage_quantiles(store, 1) == {"upload": pytest.approx((5.0, 5.0, 5.0))}


def test_a_run_without_rounds_has_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with StudyStore.create(tmp_path / "empty") as empty:
        run = empty.begin_run(RunPlan("demo", "00000000", "single", 100, 3), 2, "breast_cancer")
        assert round_quantiles(empty, run) is None and stragglers(empty, run) is None
        assert waste(empty, run) == Waste(0, 0, 0) and stage_quantiles(empty, run) == {}
