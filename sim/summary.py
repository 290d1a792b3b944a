"""A finished study in short: one JSON object for machines, a few tables for people."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from broker_server import results
from broker_server.results import Bytes, Point
from broker_server.store import StudyStore
from edge_client.model.autoencoder import Architecture
from sim.config import Study
from sim.units import bytes_text, duration_text

FP32 = 4
RECENT = 12
"""Rounds shown in the table of accuracies; a long run shows its first, its last and its peak."""


def result_json(directory: Path) -> dict[str, Any]:
    """Return the one object that `simulate --json` prints. Bytes are over all devices and rounds."""
    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        points = results.curve(store, run.run)
        best, last = results.peak(points), points[-1] if points else None
        return {
            "study": str(directory), "dataset": run.dataset, "method": run.method, "devices": run.devices,
            "rounds": run.rounds, "peak_accuracy": best and best.accuracy, "peak": best and _where(best),
            "final_accuracy": last and last.accuracy, "auroc": last and last.auroc,
            "average_precision": last and last.average_precision,
            "payload_bytes": _both(results.application_bytes(store, run.run, "payload_bytes")),
            "message_bytes": _both(results.application_bytes(store, run.run, "message_bytes")),
            "stream_bytes": _both(results.stream_bytes(store, run.run)),
            "wire_bytes": _both(results.wire_bytes(store, run.run)),
            "seconds": {"wall": run.seconds_wall, "clock": run.seconds_clock},
            "state_sha256": run.state_sha256,
        }  # fmt: skip


def show_summary(directory: Path, study: Study, input_dim: int, console: Console) -> None:
    """Print accuracy per round, what it cost beside full-parameter exchange, and where the study lies."""
    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        points = results.curve(store, run.run)
        console.print(_accuracies(points))
        for remark in _remarks(points, study):
            console.print(remark, highlight=False)
        console.print(_costs(store, run.run, study, input_dim))
        console.print(_agreement(store, run.run), highlight=False)
        for kind, count in results.events(store, run.run):
            console.print(f"{kind}: {count}", highlight=False)
        console.print(f"time on the clock {duration_text(run.seconds_clock or 0)}, in all "
                      f"{duration_text(run.seconds_wall or 0)}", highlight=False)  # fmt: skip
    console.print(f"study: {directory}", highlight=False, soft_wrap=True)


def _accuracies(points: list[Point]) -> Table:
    table = Table("round", "accuracy", "AUROC", "average precision", title="Mean over devices, end of round")
    rounds, best = results.by_round(points), results.peak(results.by_round(points))
    shown = rounds if len(rounds) <= RECENT else [*rounds[: RECENT // 2], *rounds[-RECENT // 2 :]]
    if best is not None and best not in shown:
        shown = sorted([*shown, best], key=lambda point: point.round)
    for point in shown:
        table.add_row(str(point.round), _share(point.accuracy), _share(point.auroc), _share(point.average_precision))
    return table


def _remarks(points: list[Point], study: Study) -> list[str]:
    """Say of the peak what must not be hidden."""
    best = results.peak(points)
    if best is None:
        return ["no evaluation: the devices had no test set"]
    remarks = [
        f"peak accuracy {_share(best.accuracy)} after epoch {best.epoch} of phase {best.phase} in round {best.round}; "
        "a peak is chosen by looking at the test set"
    ]
    if study.method == "gca" and best.round == 1 and best.phase == "recon":
        remarks.append("the peak precedes the first alignment: no centroid had been exchanged by then")
    return remarks


def _costs(store: StudyStore, run: int, study: Study, input_dim: int) -> Table:
    """This run beside what sending all parameters both ways every round would have cost (payload: 4 C P each way)."""
    training = study.training
    parameters = Architecture(input_dim, training.hidden, training.latent_dim).parameters
    exchanged = FP32 * study.devices * parameters * study.rounds
    table = Table("bytes, all devices and rounds", "up", "down", "both", title="Cost")
    payload = results.application_bytes(store, run, "payload_bytes")
    for name, row in (
        ("payload: tensors alone", payload),
        ("message: msgpack bodies", results.application_bytes(store, run, "message_bytes")),
        ("stream: MQTT on the link", results.stream_bytes(store, run)),
        ("wire: with TCP/IP headers", results.wire_bytes(store, run)),
        ("full parameters, payload", Bytes(exchanged, exchanged)),
    ):
        table.add_row(name, bytes_text(row.up), bytes_text(row.down), bytes_text(row.up + row.down))
    if payload.up + payload.down:
        ratio = 2 * exchanged / (payload.up + payload.down)
        table.caption = f"full-parameter exchange would have moved {ratio:.1f} times the payload (P = {parameters:,})"
    return table


def _agreement(store: StudyStore, run: int) -> str:
    """Say whether the two ends of the wire counted the same."""
    wrong = [b for b in results.balance(store, run) if b.sent != b.received and b.kind != "telemetry"]
    if not wrong:
        return "ledgers: bytes sent = bytes received, for every kind of message"
    return "ledgers: " + "; ".join(f"{b.kind} {b.direction}: sent {b.sent:,}, received {b.received:,}" for b in wrong)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _where(point: Point) -> dict[str, Any]:
    return {"round": point.round, "phase": point.phase, "epoch": point.epoch}


def _both(count: Bytes) -> dict[str, int]:
    return {"up": count.up, "down": count.down}
