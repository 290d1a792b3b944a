"""Training without a network: into the same study as any method, with nothing in its ledgers."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from broker_server.study.checkpoint import load_checkpoint
from broker_server.study.store import FILE
from edge_client.data.records import load_records
from edge_client.errors import ConfigError, GcaError
from edge_client.methods.context import LocalContext
from edge_client.methods.single import Single
from edge_client.model.choice import architecture_for, trainer_for
from sim.config.hardware import hardware
from sim.config.run_plan import run_plan, server_method
from sim.config.study import Study, load_study
from sim.emulation.study import run_study
from sim.local import POOLED
from sim.screen.progress import Quiet
from sim.screen.summary import result_json


def demo(method: str, **changed: object) -> Study:
    small = {"devices": 4, "rounds": 2, "training.hidden": [8], "training.local_epochs": 3, "link": "none"}
    return load_study("demo", {"method": method, **small, **{k.replace("__", "."): v for k, v in changed.items()}})


def run(study: Study, folder: Path) -> dict:
    run_study(study, folder, Quiet())
    return result_json(folder)


def rows(folder: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(folder / FILE)) as study:
        return study.execute(query).fetchall()


@pytest.mark.parametrize(
    ("method", "names"), [("single", [f"dev-000{i}" for i in range(1, 5)]), ("centralized", [POOLED])]
)
def test_a_study_without_a_network_holds_curves_and_no_bytes(tmp_path: Path, method: str, names: list[str]) -> None:
    result = run(demo(method), tmp_path)
    assert (result["method"], result["devices"], result["rounds"]) == (method, len(names), 2)
    for ledger in ("payload_bytes", "message_bytes", "stream_bytes", "wire_bytes"):
        assert result[ledger] == {"up": 0, "down": 0}
    for table in ("transfers", "wire", "participants"):
        assert rows(tmp_path, f"SELECT * FROM {table}") == []
    evaluated = rows(tmp_path, "SELECT round, device, phase, epoch FROM evaluations ORDER BY 1, 2, 4")
    assert evaluated == [(r, name, "recon", e) for r in (1, 2) for name in names for e in (1, 2, 3)]
    assert result["peak"]["epoch"] == 3  # chosen from the ends of rounds
    stages = rows(tmp_path, "SELECT DISTINCT device, stage FROM stages ORDER BY 1, 2")
    assert stages == [(name, stage) for name in names for stage in ("evaluate", "reconstruction")]
    opened = rows(tmp_path, "SELECT opened_s, closed_s FROM rounds ORDER BY round")
    assert opened[0][0] == 0 < opened[0][1] == opened[1][0] < opened[1][1] == result["seconds"]["clock"]
    assert sorted(path.stem for path in (tmp_path / "models").iterdir()) == names


def test_one_device_alone_and_one_device_with_a_server_that_averages_end_with_the_same_bits(tmp_path: Path) -> None:
    alone = run(demo("single", devices=1), tmp_path / "alone")
    shared = run(demo("fedavg", devices=1, isolation="task"), tmp_path / "shared")
    assert alone["state_sha256"] == shared["state_sha256"]
    assert shared["payload_bytes"]["up"] > 0 == alone["payload_bytes"]["up"]


def test_neither_threads_nor_evaluations_change_a_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = set()
    for threads, every in ((1, "epoch"), (3, "epoch"), (2, "round")):
        monkeypatch.setattr("sim.local.cores", lambda threads=threads: threads)
        hashes.add(run(demo("single", evaluation__every=every), tmp_path / f"{threads}{every}")["state_sha256"])
    assert len(hashes) == 1
    (count,) = rows(tmp_path / "2round", "SELECT count(*) FROM evaluations")[0]
    assert count == 4 * 2


def test_the_central_model_learns_the_records_of_all_shards(tmp_path: Path) -> None:
    study = demo("centralized")
    run(study, tmp_path)
    shards = [load_records(tmp_path / "shards" / f"dev-000{i}.npz").samples for i in range(1, 5)]
    samples = np.concatenate(shards)
    trainer = trainer_for(study.training, samples.shape[1])

    def context(round: int) -> LocalContext:
        return LocalContext(study.training, trainer, samples, study.seed, POOLED, round, lambda *_: None)

    state = Single().initial(context(0))
    for round in (1, 2):
        state = Single().round(state, context(round))
    arrays, _ = load_checkpoint(tmp_path / "models" / f"{POOLED}.safetensors")
    assert arrays["parameters"].tobytes() == state.parameters.tobytes()


def test_on_a_board_time_is_the_boards(tmp_path: Path) -> None:
    """Two rounds of three epochs over the largest shard: 255 records over 4 devices are at most 64."""
    study = demo("single", hardware="pi-zero-2-w")
    result = run(study, tmp_path)
    architecture = architecture_for(study.training, 9)
    speed = hardware("pi-zero-2-w").training_flops
    largest = max(len(load_records(path).samples) for path in (tmp_path / "shards").glob("dev-*.npz"))
    assert speed is not None
    assert result["seconds"]["clock"] == pytest.approx(2 * 3 * architecture.flops * largest / speed)


def test_training_that_fails_names_who_and_is_written_down(tmp_path: Path) -> None:
    with pytest.raises(GcaError, match=r"dev-000\d failed in round 1: .*diverged"):
        run(demo("single", training__learning_rate=1e9), tmp_path)
    ((completed, reason),) = rows(tmp_path, "SELECT completed, reason FROM runs")
    assert completed == 0 and "failed in round 1" in reason


# ---- what a study may not ask for ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["single", "centralized"])
@pytest.mark.parametrize(("key", "value"), [("broker", "mqtt://10.0.0.1"), ("compute", "synthetic")])
def test_what_needs_a_network_is_refused_without_one(method: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f'^command line: {key}: .*is nothing to method "{method}"'):
        load_study("demo", {"method": method, key: value})


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "dp_fedavg"])
def test_shared_parameters_need_a_shared_beginning(method: str) -> None:
    with pytest.raises(ConfigError, match=r'training\.init: "independent" gives .* no common model'):
        load_study("demo", {"method": method, "training.init": "independent"})
    assert load_study("demo", {"method": "gca", "training.init": "independent"}).training.init == "independent"


@pytest.mark.parametrize("method", ["single", "centralized"])
def test_a_method_without_a_server_is_told_so(method: str) -> None:
    with pytest.raises(ConfigError, match="has no server; run it with `gca simulate`"):
        server_method(load_study("demo", {"method": method}))
    assert run_plan(load_study("demo", {"method": method}), "x").devices == (8 if method == "single" else 1)
