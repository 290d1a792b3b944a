"""Whole studies with defended codes: processes and tasks alike, in the store, and refused where they make no sense."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from edge_client.errors import ConfigError
from sim.config.study import dump, load_study
from sim.costs.plan import plan_study
from sim.data import load
from sim.emulation.study import run_study
from sim.screen.progress import Quiet

ALL = {"training.code_clip": 3.0, "training.code_noise": 0.2, "training.code_rotation": True}


def run(folder: Path, **changes: Any) -> tuple[str, list[str], int]:
    """Run a small study; return the hash of its models, what it told of defences, and the payload that went up."""
    chosen = {"rounds": 2, "devices": 4, "link": "none", "isolation": "task", "clock": "virtual"} | changes
    run_study(load_study("demo", chosen), folder, Quiet())
    with sqlite3.connect(folder / "study.sqlite") as store:
        ((state,),) = store.execute("SELECT state_sha256 FROM runs")
        told = [detail for (detail,) in store.execute("SELECT detail FROM events WHERE detail LIKE 'defences: %'")]
        ((payload,),) = store.execute(
            "SELECT sum(payload_bytes) FROM transfers WHERE side = 'server' AND kind = 'upload' AND direction = 'up'"
        )
    return state, told, payload


def test_processes_and_tasks_defend_alike_and_the_study_says_what_it_is_worth(tmp_path: Path) -> None:
    tasks = run(tmp_path / "tasks", **ALL)
    processes = run(tmp_path / "processes", isolation="process", clock="real", **ALL)
    plain = run(tmp_path / "plain")
    assert tasks == processes and tasks[0] != plain[0] and plain[1] == []
    assert "rotated" in tasks[1][0] and any("epsilon" in line and "would take" in line for line in tasks[1])
    assert tasks[2] == plain[2], "the stages leave shapes as they are"


def test_fewer_codes_are_fewer_bytes(tmp_path: Path) -> None:
    whole, half = (run(tmp_path / f"{rho}", **{"training.upload_fraction": rho})[2] for rho in (0.5, 0.25))
    assert 0.4 * whole < half < 0.6 * whole


def test_a_plan_says_what_a_defence_is_worth() -> None:
    study = load_study("demo", ALL)
    notes = plan_study(study, load(study.dataset)).notes
    assert any("code_noise=" in note for note in notes) and any("rotation" in note for note in notes)
    assert load_study("demo", ALL) == study and "code_rotation = true" in dump(study)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"method": "fedavg", "training.code_clip": 1.0}, "fedavg uploads none"),
        ({"method": "single", "training.code_rotation": True}, "single uploads none"),
        ({"training.code_noise": 1.0}, "in units of training.code_clip"),
        ({"training.code_rotation": True, "clustering.warm_start": True}, "turned otherwise"),
        ({"training.code_clip": 0.0}, "training.code_clip"),
        ({"training.code_noise": -1.0, "training.code_clip": 1.0}, "training.code_noise"),
    ],
)
def test_what_defends_nothing_is_refused(chosen: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_study("demo", chosen)
