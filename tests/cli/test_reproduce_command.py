"""`gca reproduce` from end to end: a table cut down to what a test can wait for."""

import csv
from pathlib import Path

from end_to_end_tools import gca


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
    again = gca(*words)
    assert again.returncode == 0 and again.stdout.startswith("7 of 7 studies there already\n")
    assert again.stdout.partition("table06")[2] == done.stdout.partition("table06")[2]


def test_a_dataset_that_no_table_has_is_named_beside_those_there_are(cli) -> None:
    said = cli("reproduce", "table06", "--datasets", "academic,adlut")
    assert said.code == 2 and said.err.startswith("error: --datasets adlut: not in table06; there are academic, adult")
