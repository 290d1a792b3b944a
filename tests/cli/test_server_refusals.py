"""`gca server`: what it refuses before it connects to anything, in one line."""

import socket
from pathlib import Path

import pytest

from broker_server.study.store import StudyStore
from edge_client.errors import ConfigError
from edge_client.transport.endpoint import endpoint
from sim.cli.app import run
from sim.config.run_plan import run_plan
from sim.config.study import dump, load_study
from sim.screen.progress import Quiet
from sim.serve import Around, resume_run
from sim.studies import STUDY

BROKER = ("--broker", "mqtt://127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 2, "CONFIG is missing"),
        (("demo",), 2, "--broker is missing"),
        (("demo", *BROKER), 2, "--run is missing"),
        (("--resume", "X"), 2, "--broker is missing"),
        (("demo", "--resume", "X", *BROKER), 2, "CONFIG: a run goes on as it was begun"),
        (("--resume", "X", "--rounds", "9", *BROKER), 2, "--rounds: a run goes on as it was begun"),
        (("--resume", "X", "--set", "seed=1", *BROKER), 2, "--set: a run goes on as it was begun"),
        (("--resume", "nowhere", *BROKER), 3, "nowhere: holds no study"),
        (("demo", "--run", "r", "--set", "link=lora", *BROKER), 2, "--set link: means nothing to real devices"),
        (("demo", "--run", "r", "--set", "data.partition=iid", *BROKER), 2, "records of their own; leave it out"),
        (("demo", "--run", "r", "--set", "method=single", *BROKER), 2, "'single' has no server"),
    ],
)
def test_what_does_not_go_together_is_told(words: tuple[str, ...], code: int, told: str, capsys) -> None:
    assert run(["server", *words]) == code
    said = capsys.readouterr().err
    assert told in said and len(said.splitlines()) == 1


def test_devices_may_be_set_as_any_other_key(tmp_path: Path, capsys) -> None:
    """Neither is there a broker; but a run of one device cannot need two, which is found out before that."""
    words = ["server", "demo", "--run", "r", "--set", "devices=1", "--set", "participation.minimum_devices=2", *BROKER]
    assert run([*words, "--output", str(tmp_path / "s")]) == 2
    assert "more than the 1 device of this study" in capsys.readouterr().err


def test_a_port_for_metrics_that_is_taken_is_told_before_anything_is_begun(tmp_path: Path, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ["server", "demo", "--run", "r", "--output", str(tmp_path / "s"), "--metrics-port", port, *BROKER]
        assert run(words) == 3
    said = capsys.readouterr().err
    assert f"--metrics-port: cannot listen on 127.0.0.1:{port}" in said and "mqtt://" not in said
    assert not (tmp_path / "s").exists()


def test_a_study_of_real_devices_is_left_to_its_server(tmp_path: Path, capsys) -> None:
    study = load_study("demo")
    (tmp_path / STUDY).write_text(dump(study))
    with StudyStore.create(tmp_path) as store:
        store.begin_run(run_plan(study, "r"), study.devices, study.dataset)
    assert run(["simulate", "--resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"gca server --resume {tmp_path} --broker URL" in said and len(said.splitlines()) == 1


def test_a_study_of_emulated_devices_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / STUDY).write_text(dump(load_study("demo")))
    (tmp_path / "shards").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="its devices are emulated; go on with it: gca simulate --resume"):
        resume_run(tmp_path, Around(endpoint("mqtt://127.0.0.1:1"), Quiet(), 1.0), "r")
    assert sorted(tmp_path.iterdir()) == before
