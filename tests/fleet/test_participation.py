"""Who takes part in a round, in virtual time: more asked than wanted, silent devices, deadlines, late joiners."""

from pathlib import Path
from typing import Any

import pytest

from broker_server.study import results
from broker_server.study.store import StudyStore
from edge_client.cohort import sizes
from edge_client.errors import ConfigError, GcaError
from sim.config.study import load_study
from sim.emulation.dropout import silences
from sim.emulation.study import run_study
from sim.screen.progress import Quiet
from sim.screen.summary import irregularities

QUICK, SLOW = "2mbit/4mbit/20ms", "20kbit/20kbit/400ms"


def fates(folder: Path, **overrides: Any) -> tuple[dict[int, dict[str, str]], list[float]]:
    """Run a study; return the fate of each device by round, and how long the rounds took until they closed."""
    given = {"clock": "virtual", "hardware": "pi-zero-2-w", "link": QUICK, "rounds": 3, "devices": 4,
             "training.recon_epochs": 1, "training.align_epochs": 1, "training.local_epochs": 1,
             "evaluation.every": "round", "clustering.algorithm": "kmeans"}  # fmt: skip
    run_study(load_study("demo", {**given, **{k.replace("__", "."): v for k, v in overrides.items()}}), folder, Quiet())
    found: dict[int, dict[str, str]] = {}
    with StudyStore.open(folder) as store:
        for round, device, fate in store.rows("SELECT round, device, fate FROM participants"):
            found.setdefault(round, {})[device] = fate
        return found, [took for (took,) in store.rows("SELECT closed_s - opened_s FROM rounds ORDER BY round")]


@pytest.mark.parametrize(
    ("devices", "fraction", "over", "expected"),
    [(10, 0.5, 1.0, (5, 5)), (10, 0.5, 1.2, (5, 6)), (10, 0.3, 1.1, (3, 4)), (10, 0.5, 3.0, (5, 10)),
     (1, 0.1, 5.0, (1, 1)), (10, 0.29, 1.0, (2, 2))],
)  # fmt: skip
def test_how_many_are_wanted_and_asked(devices: int, fraction: float, over: float, expected: tuple[int, int]) -> None:
    assert sizes(devices, fraction, over) == expected


def test_a_round_that_asks_for_more_closes_when_enough_are_in(tmp_path: Path) -> None:
    """Of four devices two are wanted and all asked: the two quick ones are in long before the slow ones."""
    links = [SLOW, QUICK, QUICK, SLOW]
    found, took = fates(tmp_path / "over", link=links, participation__fraction=0.5, participation__over_selection=2.0)
    for by_device in found.values():
        assert {device for device, fate in by_device.items() if fate == "accepted"} == {"dev-0002", "dev-0003"}
        assert set(by_device) == {"dev-0001", "dev-0002", "dev-0003", "dev-0004"}
    _, whole = fates(tmp_path / "all", link=links)
    assert max(took) < 0.5 * min(whole)


def test_silent_devices_are_those_of_the_lot_and_no_others(tmp_path: Path) -> None:
    found, took = fates(tmp_path / "s", method="fedavg", rounds=6, participation__dropout=0.3,
                        participation__deadline=5.0)  # fmt: skip
    drawn = {round: {device for device in found[round] if silences(100, device, 0.3)(round)} for round in range(1, 7)}
    assert 0 < sum(map(len, drawn.values())) < 24
    assert {round: {d for d, fate in by.items() if fate != "accepted"} for round, by in found.items()} == drawn
    # A round without anyone to wait for ends when all are in, the others at the deadline.
    assert {round for round, seconds in enumerate(took, start=1) if seconds > 4.9} == {n for n in drawn if drawn[n]}


def test_a_run_in_which_too_many_are_silent_ends_with_a_word(tmp_path: Path) -> None:
    with pytest.raises(GcaError, match=r"round \d: \d of 4 uploads \(none came in time\)"):
        fates(tmp_path / "s", participation__dropout=0.5, participation__deadline=5.0, participation__quorum=4)


def test_a_deadline_in_seconds_leaves_the_slow_behind(tmp_path: Path) -> None:
    """At 20 kbit/s a FedAvg upload of some 150 kB takes a minute; 5 s are enough for the others."""
    found, took = fates(tmp_path / "d", method="fedavg", rounds=2, link=[SLOW, QUICK], participation__deadline=5.0)
    for by_device in found.values():
        assert {device for device, fate in by_device.items() if fate == "accepted"} == {"dev-0002", "dev-0004"}
    assert took == pytest.approx([5.0, 5.0], abs=0.01)


def test_who_joins_late_takes_part_from_then_on(tmp_path: Path) -> None:
    """The fourth device's link is dead for its first 8 s; the run begins without it after 2."""
    trace = tmp_path / "late.csv"
    trace.write_text("second,up_kbit,down_kbit\n0,0,0\n8,2000,4000\n")
    found, _ = fates(tmp_path / "l", rounds=12, link=[SLOW, QUICK, QUICK, f"trace:{trace}"],
                     participation__minimum_devices=3, participation__wait_seconds=2.0)  # fmt: skip
    assert "dev-0004" not in found[1]
    joined = min(round for round, by_device in found.items() if "dev-0004" in by_device)
    assert all(by_device["dev-0004"] == "accepted" for round, by_device in found.items() if round >= joined)


def never_through(folder: Path, least: int) -> None:
    """CONNECT alone takes minutes at 1 bit/s, and the broker waits for it for seconds, however often it is tried."""
    fates(folder, devices=3, rounds=1, link=[QUICK, QUICK, "1bit"], participation__deadline=9.0,
          participation__wait_seconds=9.0, participation__minimum_devices=least)  # fmt: skip


def test_a_run_is_complete_although_one_never_gets_through_its_end_and_the_study_says_so(tmp_path: Path) -> None:
    never_through(tmp_path / "n", 2)
    with StudyStore.open(tmp_path / "n") as store:
        assert store.rows("SELECT completed, state_sha256 FROM runs") == [(1, None)]
        told = store.rows("SELECT round, device, detail FROM events WHERE kind = 'missed_the_end'")
        assert told == [(1, "dev-0003", "all rounds are over; it left no model behind")]
        remarks = irregularities(store, 1, results.fates(store, 1))
    assert any(
        line.startswith("round 1: all rounds are over, but dev-0003 never got through the end") for line in remarks
    )
    models = sorted(path.stem for path in (tmp_path / "n" / "models").iterdir())
    assert models == ["dev-0001", "dev-0002"]


def test_virtual_time_does_not_go_on_for_ever_for_who_never_gets_through(tmp_path: Path) -> None:
    with pytest.raises(GcaError, match="ended early: only 2 of 3 devices joined in 9 s"):
        never_through(tmp_path / "n", 3)


def test_silence_needs_a_deadline() -> None:
    with pytest.raises(ConfigError, match=r"participation\.dropout: .* allowed with participation\.deadline"):
        load_study("demo", {"participation.dropout": 0.1})
