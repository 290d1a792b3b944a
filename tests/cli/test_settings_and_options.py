"""`--set` and the options of its own for a few keys: either says it, and the option wins where both do."""

import json
from pathlib import Path

import pytest

from sim.cli.app import run as command
from sim.config.study import load_study

SAID = {"devices": 3, "rounds": 1, "seed": 5, "clock": "virtual", "isolation": "task"}


@pytest.mark.parametrize("options", [[], ["--rounds", "2"]])
def test_a_plan_is_of_what_was_set(options: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    settings = [part for key in ("devices", "rounds") for part in ("--set", f"{key}={SAID[key]}")]
    assert command(["plan", "demo", "--json", *settings, *options]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["devices"], told["rounds"]) == (3, 2 if options else 1)


def test_a_simulation_is_of_what_was_set(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = [part for key, value in SAID.items() for part in ("--set", f"{key}={value}")]
    assert command(["simulate", "demo", "--json", *settings, "--output", str(tmp_path / "study")]) == 0
    study = load_study(tmp_path / "study" / "study.toml")
    assert {key: getattr(study, key) for key in SAID} == SAID
