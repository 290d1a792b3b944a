"""`gca plan` against the published table and against what a real run sends."""

import csv
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from end_to_end_tools import gca

from sim.config.study import load_study
from sim.costs.exchange import RUN
from sim.costs.plan import plan_study
from sim.data import load

PUBLISHED = Path(__file__).parents[2] / "configs" / "published" / "table12_communication_per_round.csv"
DATASETS = ("academic", "adult", "credit", "magic")
"""All tabular ones but bank, whose number of codes the paper misprints."""


SHARING = ("fedavg", "fedprox", "fednova", "dp_fedavg")


def published_rows() -> list[tuple[str, int, str]]:
    with PUBLISHED.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["protocol"] == "gca" and row["dataset"] in DATASETS]
    return [(row["dataset"], int(row["k"]), row["total_mib_per_round"]) for row in rows]


loaded = cache(load)


def test_the_table_has_four_k_for_each_dataset() -> None:
    assert sorted({(dataset, k) for dataset, k, _ in published_rows()}) == [
        (dataset, k) for dataset in DATASETS for k in (10, 20, 40, 80)
    ]


@pytest.mark.real_data
@pytest.mark.parametrize(("dataset", "k", "mib"), published_rows())
def test_planned_payload_is_the_published_one(data_dir: Path, dataset: str, k: int, mib: str) -> None:
    study = load_study(f"paper/{dataset}", {"clustering.components": k})
    planned = plan_study(study, loaded(dataset, data_dir))
    assert f"{(planned.payload.up + planned.payload.down) / 2**20:.3f}" == mib


@pytest.mark.real_data
@pytest.mark.parametrize("method", SHARING)
@pytest.mark.parametrize("dataset", ["academic", "adult", "bank", "credit", "magic"])
def test_planned_payload_of_shared_parameters_is_the_published_one(data_dir: Path, dataset: str, method: str) -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as stream:
        (published,) = [row["total_mib_per_round"] for row in csv.DictReader(stream)
                        if (row["dataset"], row["protocol"]) == (dataset, "parameter_sharing")]  # fmt: skip
    planned = plan_study(load_study(f"paper/{dataset}", {"method": method}), loaded(dataset, data_dir))
    assert planned.payload == planned.full_exchange
    assert f"{(planned.payload.up + planned.payload.down) / 2**20:.3f}" == published


@pytest.mark.real_data
def test_bank_differs_by_the_codes_that_the_paper_prints_too_many(data_dir: Path) -> None:
    """3,960 - 3,460 codes of 16 floats are 32,000 bytes; all else of bank's rows is the published formula."""
    for k in (10, 20, 40, 80):
        planned = plan_study(load_study("paper/bank", {"clustering.components": k}), loaded("bank", data_dir))
        assert (planned.payload.up, planned.payload.down) == (3_960 * 16 * 4 - 32_000, 20 * k * 17 * 4)


@pytest.mark.real_data
def test_the_real_command_prints_the_same(data_dir: Path) -> None:
    done = gca("plan", "paper/magic", "--json", "--set", "clustering.components=40", "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    # 1,410 codes of 16 floats up; 10 devices get 40 centroids of 16 floats and a support each.
    assert result["payload_bytes"] == {"up": 1_410 * 16 * 4, "down": 10 * 40 * 17 * 4}
    assert (result["uploaded_codes"], result["parameters"], result["devices"], result["rounds"]) == (
        1_410,
        38_037,
        10,
        100,
    )


def test_the_demo_in_words_and_as_json(cli) -> None:
    words, listed = cli("plan"), cli("plan", "--json")
    assert words.code == listed.code == 0 and words.err == ""
    result = json.loads(listed.out)
    # 8 devices of 32 records or one more: 16 codes of 4 floats each; 4 centroids of 4 floats and a support come down.
    assert result["payload_bytes"] == {"up": 8 * 16 * 4 * 4, "down": 8 * 4 * 5 * 4}
    assert "2.05 kB" in words.out and "640 B" in words.out


@contextmanager
def tables(study: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(study / "study.sqlite")
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("method", ["gca", "fedavg"])
def test_planned_message_bytes_are_those_of_a_real_round(cli, tmp_path: Path, method: str) -> None:
    """The second of three rounds, which holds no greeting and no end. A message of a young run is up to three bytes
    shorter than planned, as its round and sequence number are small: 1 % of a chunk, more of a short message."""
    study = tmp_path / f"breast_cancer-{method}-{RUN}"  # as long a name as the plan counts with
    devices = "process" if method == "gca" else "task"
    asked = ("demo", "--link", "none", "--method", method, "--set", f"isolation={devices}")
    done = gca("simulate", *asked, "--rounds", "3", "--json", "--output", str(study))
    assert done.returncode == 0, done.stderr
    planned = json.loads(cli("plan", *asked, "--json").out)["message_bytes"]
    with tables(study) as connection:
        rows = connection.execute(
            "SELECT direction, kind, sum(messages), sum(message_bytes) FROM transfers "
            "WHERE side = 'server' AND round = 2 AND kind IN ('upload', 'broadcast', 'control') GROUP BY 1, 2"
        ).fetchall()
    chunks = 1 if method == "gca" else 3  # of 65,536 B; P = 38,541 floats are 154,164 B
    seen = {(direction, kind): (messages, size) for direction, kind, messages, size in rows}
    assert {key: messages for key, (messages, _) in seen.items()} == {
        ("up", "upload"): 8 * chunks, ("down", "broadcast"): 8 * chunks, ("down", "control"): 24,
    }  # fmt: skip
    for direction in ("up", "down"):
        messages = sum(count for (way, _), (count, _) in seen.items() if way == direction)
        size = sum(size for (way, _), (_, size) in seen.items() if way == direction)
        assert 0 <= planned[direction] - size <= 3 * messages
    assert planned["up"] == pytest.approx(seen["up", "upload"][1], rel=0.01)
