"""The main job through the command: results, ledgers and hashes of whole runs over real MQTT."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from brokers import open_broker
from end_to_end_tools import gca

from broker_server.broker.limits import Limits
from sim.config.study import load_study
from sim.costs.payload import payload_bytes
from sim.data import load

KEYS = {
    "study", "dataset", "method", "devices", "rounds", "peak_accuracy", "final_accuracy", "auroc",
    "average_precision", "payload_bytes", "message_bytes", "wire_bytes", "seconds", "state_sha256",
}  # fmt: skip


def study_rows(result: dict[str, Any], query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(Path(result["study"]) / "study.sqlite")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_demo_study_reports_every_key(simulate) -> None:
    result = simulate("demo", "--rounds", "2", "--link", "none")
    assert result.keys() >= KEYS
    assert result["rounds"] == 2 and result["devices"] == 8
    assert 0.5 < result["final_accuracy"] <= result["peak_accuracy"] <= 1
    for ledger in ("payload_bytes", "message_bytes", "wire_bytes"):
        assert set(result[ledger]) == {"up", "down"}
    assert result["payload_bytes"]["up"] < result["message_bytes"]["up"] < result["wire_bytes"]["up"]


def test_a_study_repeats_to_the_bit(simulate) -> None:
    first, second = (simulate("demo", "--rounds", "2", "--link", "none") for _ in range(2))
    assert first["state_sha256"] == second["state_sha256"]
    assert first["payload_bytes"] == second["payload_bytes"]
    assert first["state_sha256"] != simulate("demo", "--rounds", "2", "--link", "none", "--seed", "101")["state_sha256"]


@pytest.mark.real_data
@pytest.mark.mosquitto
async def test_magic_ends_the_same_on_both_brokers_in_any_order(simulate, data_dir) -> None:
    """The main promise: 10 devices, 3 rounds; which broker and who comes first changes nothing."""
    magic = ("configs/paper/magic.toml", "--rounds", "3")
    embedded = simulate(*magic)
    reordered = simulate(*magic, "--start-order", "reversed")
    async with open_broker("mosquitto") as broker:
        real = await asyncio.to_thread(simulate, *magic, "--broker", broker.url)
    assert embedded["state_sha256"] == reordered["state_sha256"] == real["state_sha256"]
    assert embedded["payload_bytes"] == real["payload_bytes"]


@pytest.mark.real_data
@pytest.mark.parametrize("dataset", ["academic", "adult", "bank", "credit", "magic"])
def test_one_real_round_moves_the_published_payload(simulate, data_dir: Path, dataset: str) -> None:
    """Table 12's formula to the byte for a round over real MQTT (bank: with our U, 3,460)."""
    study = load_study(f"paper/{dataset}")
    result = simulate(f"paper/{dataset}", "--rounds", "1", "--set", "evaluation.every=round")
    uploaded = {"academic": 390, "adult": 2460, "bank": 3460, "credit": 28350, "magic": 1410}[dataset]
    width = load(dataset, data_dir).input_dim
    up, down = payload_bytes(
        "gca", devices=study.devices, uploaded_codes=uploaded, latent_dim=16,
        components=study.clustering.components, parameters=513 * width + 35_472,
    )  # fmt: skip
    assert result["payload_bytes"] == {"up": up, "down": down}


def test_both_ends_count_the_same_bytes(simulate) -> None:
    """Sum of sent = sum of received, for every kind of message and each device."""
    result = simulate("demo", "--rounds", "2", "--link", "none")
    rows = study_rows(
        result,
        "SELECT device, direction, kind, side, sum(messages), sum(payload_bytes), sum(message_bytes) FROM transfers "
        "WHERE kind NOT IN ('ignored', 'telemetry') GROUP BY device, direction, kind, side",
    )
    sides: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {"server": {}, "device": {}}
    for device, direction, kind, side, *counts in rows:
        sides[side][device, direction, kind] = tuple(counts)
    assert sides["server"] == sides["device"]
    assert {kind for _, _, kind in sides["device"]} == {"upload", "broadcast", "control"}


def test_application_bytes_fit_inside_the_wire(simulate) -> None:
    """What MQTT adds to a message is known: the stream holds all messages and at most 64 bytes more for each, plus
    connecting; the wire ledger adds 52 bytes per segment."""
    result = simulate("demo", "--rounds", "2", "--link", "none")
    for direction in ("up", "down"):
        messages, message_bytes = study_rows(
            result,
            f"SELECT sum(messages), sum(message_bytes) FROM transfers WHERE side='device' AND direction='{direction}'",
        )[0]
        stream, wire, segments = study_rows(
            result, f"SELECT sum(stream_bytes), sum(wire_bytes), sum(segments) FROM wire WHERE direction='{direction}'"
        )[0]
        assert message_bytes < stream
        assert wire == stream + 52 * segments
        acknowledgements = study_rows(result, "SELECT sum(messages) FROM transfers WHERE side='device'")[0][0] * 4
        assert stream - message_bytes < messages * 64 + acknowledgements + 8 * 600


def test_twenty_devices_and_the_server_run_on_two_cores(simulate) -> None:
    result = simulate(
        "demo", "--rounds", "2", "--devices", "20", "--link", "none", "--set", "training.upload_fraction=1.0"
    )
    assert result["devices"] == 20


def test_partial_participation_draws_the_asked_number(simulate) -> None:
    result = simulate("demo", "--rounds", "3", "--link", "none", "--set", "participation.fraction=0.5")
    rows = study_rows(result, "SELECT round, count(*) FROM participants WHERE fate='accepted' GROUP BY round")
    assert rows == [(1, 4), (2, 4), (3, 4)]
    # Who is not in the cohort does not pay for the broadcast either.
    down = study_rows(result, "SELECT count(*) FROM transfers WHERE side='device' AND kind='broadcast'")[0][0]
    assert down == 12


async def test_a_broker_whose_limit_is_too_small_is_refused_before_the_run(tmp_path: Path) -> None:
    """It would drop our chunks without a word; the error names what passed, what did not, and the size needed."""
    async with open_broker("embedded", limits=Limits(max_packet_size=20_000)) as broker:
        done = await asyncio.to_thread(gca, "simulate", "demo", "--broker", broker.url, "--output", str(tmp_path / "s"))
    assert done.returncode == 3
    assert "66560" in done.stderr and "max_packet_size" in done.stderr
    assert not (tmp_path / "s").exists()
