"""`gca reproduce` from end to end: a table cut down to what a test can wait for."""

import csv
from pathlib import Path

import pytest
from end_to_end_tools import gca
from study_rows import rows


def test_a_table_is_run_compared_and_found_again(tmp_path: Path, data_dir: Path) -> None:
    words = ("reproduce", "table06", "--datasets", "academic", "--rounds", "1", "--seeds", "100", "--set", "devices=2",
             "--output", str(tmp_path / "studies"), "--csv", str(tmp_path / "csv"), "--data-dir",
             str(data_dir))  # fmt: skip
    done = gca(*words)
    assert done.returncode == 0, done.stderr
    assert "cut down: 1 of 100 rounds" in done.stdout and "gca above single: published for 1 dataset" in done.stdout
    lines = list(csv.DictReader((tmp_path / "csv" / "table06.csv").read_text().splitlines()))
    methods = {"gca", "single", "centralized", "fedavg", "fedprox", "fednova", "dp_fedavg"}
    assert {line["row"] for line in lines} == methods
    for line in lines:
        assert 0 < float(line["ours_mean"]) <= 100
        difference = float(line["ours_mean"]) - float(line["published_mean"])
        assert abs(float(line["difference"]) - difference) < 1e-6
        assert bool(line["local_end_peak_mean_pct"]) == line["row"].startswith(("fed", "dp_"))
    fedavg = next(line for line in lines if line["row"] == "fedavg")  # one round: the last epoch before its only mean
    ((folder,),) = [list(tmp_path.glob("studies/academic-fedavg-*"))]
    ((local,),) = rows(folder, "SELECT 100 * avg(accuracy) FROM evaluations WHERE phase = 'recon' AND epoch = 10")
    assert float(fedavg["local_end_peak_mean_pct"]) == pytest.approx(local, abs=1e-3)
    again = gca(*words)
    assert again.returncode == 0 and again.stdout.startswith("7 of 7 studies there already\n")
    assert again.stdout.partition("table06")[2] == done.stdout.partition("table06")[2]

    few = gca(*words, "--rows", "gca,single")
    assert few.returncode == 0 and few.stdout.startswith("2 of 2 studies there already\n")
    lines = list(csv.DictReader((tmp_path / "csv" / "table06.csv").read_text().splitlines()))
    assert [line["row"] for line in lines] == ["gca", "single"]


def test_a_dataset_that_no_table_has_is_named_beside_those_there_are(cli) -> None:
    said = cli("reproduce", "table06", "--datasets", "academic,adlut")
    assert said.code == 2 and said.err.startswith("error: --datasets adlut: not in table06; there are academic, adult")
    said = cli("reproduce", "table14", "--rows", "gca,single")
    assert said.code == 2 and said.err.startswith("error: --rows single: not in table14; there are gca, fedavg")
