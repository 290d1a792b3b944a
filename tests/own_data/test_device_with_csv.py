"""`gca device --csv` end to end: a shared scaler, two devices, a server; and what its options need."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest
from brokers import open_broker

from broker_server.study.store import StudyStore
from edge_client.__main__ import main


async def gca(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sim.cli", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


def pump(folder: Path, seed: int) -> Path:
    """150 records of four readings that follow one hidden load, 30 of them faulty."""
    draw = np.random.default_rng(seed)
    load, faulty = draw.uniform(1, 3, size=150), draw.permutation(150) < 30
    readings = np.outer(load, [10, 5, 1, 0.2]) * (1 + 0.01 * draw.normal(size=(150, 4)))
    readings[faulty, 2] *= 4
    lines = [",".join([*map(str, row), "fault" if bad else "ok"]) for row, bad in zip(readings, faulty, strict=True)]
    path = folder / f"pump-{seed}.csv"
    path.write_text("\n".join(["flow,power,heat,noise,state", *lines]) + "\n")
    return path


async def test_two_devices_with_csv_files_learn_to_tell_faults(tmp_path: Path) -> None:
    files, scaler, study = [pump(tmp_path, seed) for seed in (1, 2)], tmp_path / "pumps.json", tmp_path / "study"
    own = ("--label", "state", "--normal", "ok")
    assert main(["--csv", str(files[0]), *own, "--write-scaler", str(scaler)]) == 0
    small = ("demo", "--devices", "2", "--rounds", "3", "--set", "training.upload_fraction=0.5",
             "--set", "training.recon_epochs=30")  # fmt: skip
    async with open_broker("embedded") as broker:
        where = ("--broker", broker.url, "--run", "pumps")
        processes = [await gca("server", *small, *where, "--output", str(study), "--wait", "60")]
        for name, file in zip(("pi-1", "pi-2"), files, strict=True):
            words = ("device", *where, "--id", name, "--csv", str(file), *own, "--scaler", str(scaler))
            processes.append(await gca(*words))
        said = [(await process.communicate())[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert "96 normal records to train on, 24 normal and 30 anomalous to judge by" in said[1]
    assert f"standardised with {scaler}" in said[1]
    with StudyStore.open(study) as store:
        rows = store.rows("SELECT device, max(auroc) FROM evaluations GROUP BY device ORDER BY device")
    assert [device for device, _ in rows] == ["pi-1", "pi-2"]
    assert all(auroc > 0.8 for _, auroc in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "d.npz", "--csv", "d.csv"], "not allowed with"),
        ([], "--data --csv"),
        (["--data", "d.npz", "--label", "y"], "--label belongs to a CSV file"),
        (["--csv", "d.csv", "--normal", "ok"], "give --label"),
        (["--csv", "d.csv", "--scaler", "a", "--write-scaler", "b"], "give one of them"),
        (["--csv", "d.csv", "--broker", "mqtt://h"], "required: --run, --id"),
        (["--data", "d.npz", "--up-rate", "20kbit"], "'20kbit' is no number; give bits per second"),
    ],
)
def test_options_that_do_not_go_together_are_a_line_on_usage(capsys, words: list[str], told: str) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and told in line and line.endswith("; see gca device --help")


def test_a_model_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path, capsys) -> None:
    model = tmp_path / "missing" / "model.npz"
    words = ["--broker", "mqtt://localhost:1", "--run", "r", "--id", "d", "--data", "d.npz", "--model", str(model)]
    assert main(words) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {model}: cannot be written there")


def test_an_unusable_file_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.csv").write_text("a,b\n1,x\n")
    words = ["--broker", "mqtt://localhost:1", "--run", "r", "--id", "d", "--csv", str(tmp_path / "own.csv")]
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1 and "line 2: column 'b' holds 'x'" in told
