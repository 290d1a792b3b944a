"""`gca attack`: what it prints of an outcome, and what it refuses."""

import json
from pathlib import Path

import pytest
from attack.attack_tools import kept

from sim.cli.app import run as command


def test_the_command_says_what_the_figures_mean(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["attack", str(study), "--starts", "4", "--steps", "5"]) == 0
    out = capfd.readouterr().out
    record = kept(study)[0]
    assert f"{record.ntmse:.3f}" in out and f"{record.excess_cosine:+.3f}" in out
    assert ("farther from" if record.ntmse > 1 else "nearer to") in out
    assert "the upload of round 3, one after the last" in out
    assert command(["attack", str(study), "--starts", "4", "--steps", "5", "--round", "2"]) == 0
    assert "the upload of round 2: " in capfd.readouterr().out
    assert command(["attack", str(study), "--starts", "4", "--steps", "5", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["ntmse"] == record.ntmse and told["knows"] == [] and told["records"] == 40


def test_the_command_says_how_many_codes_are_read(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["attack", str(study), "--starts", "4", "--steps", "5", "--knows", "records"]) == 0
    assert f"{100 * kept(study)[0].details['nearer_than_strangers']:.1f} %   of codes" in capfd.readouterr().out


def test_the_command_links(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["attack", str(study), "--linkage", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["attack"] == "linkage" and told["linked"] <= told["common"] and "ntmse" not in told
    assert command(["attack", str(study), "--linkage"]) == 0
    assert "by chance 5.0 %" in capfd.readouterr().out
    for ignored in (["--knows", "records"], ["--starts", "5"], ["--steps", "5"], ["--model", "uploaded"]):
        assert command(["attack", str(study), "--linkage", *ignored]) == 2
