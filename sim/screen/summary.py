"""A finished study in short: one JSON object for machines, a few tables for people."""

import math
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from broker_server.study import results
from broker_server.study.results import Bytes, Point, RunRow
from broker_server.study.store import StudyStore
from edge_client.model.choice import architecture_for
from edge_client.protocol.codec import FP32
from edge_client.words import counted
from sim.config.devices import several
from sim.config.study import Study
from sim.screen.narrow import show
from sim.screen.units import bytes_text, duration_text, share_text
from sim.screen.words import printable

FALLEN = 0.05
"""Accuracy lost since the peak that is worth a warning; less may be the noise of small test sets."""
RECENT = 12
"""Rounds shown in the table of accuracies; a long run shows its first, its last and its peak."""
REMARKS = 5
"""Remarks on rounds that are shown; the study holds them all."""


def result_json(directory: Path) -> dict[str, Any]:
    """Return the one object that `simulate --json` prints. Bytes are over all devices and rounds."""
    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        points = sound_curve(store, run)
        best, last = results.peak(judged(points, run.method)), points[-1] if points else None
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


def judged(points: list[Point], method: str) -> list[Point]:
    """Return the instants that a peak is chosen from, which are the paper's (its section "Evaluation Protocol").

    GCA: after every reconstruction epoch. Any other method once a round: parameter sharing after the aggregate was
    taken over, `single` and `centralized` after the last epoch. The others are part of the curve, but no candidates.
    Devices that judge themselves once a round leave GCA no such instant; then the ends of rounds have to do.
    """
    epochs = [point for point in points if point.phase == "recon"] if method == "gca" else []
    return epochs or results.by_round(points)


def show_summary(directory: Path, study: Study, input_dim: int, console: Console) -> None:
    """Print accuracy per round, what it cost beside full-parameter exchange, and where the study lies."""
    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        points = sound_curve(store, run)
        best = results.peak(judged(points, run.method))
        fates = results.fates(store, run.run)
        show(_accuracies(points, best, _table(console, "Mean over devices")), console)
        _say(console, remarks_on(points, best, run))
        uploads = study.devices * run.rounds if study.is_local else sum(fates.values())
        show(_costs(store, run, study, input_dim, uploads, console), console)
        _say(console, [*agreement(store, run.run), *irregularities(store, run.run, fates)])
        _say(console, [f"time on the run's clock {duration_text(run.seconds_clock or 0)}; a person waited "
                       f"{duration_text(run.seconds_wall or 0)}", *_stood_still(study)])  # fmt: skip
    console.print(f"study: {directory}", markup=False, highlight=False, soft_wrap=True)


def sound_curve(store: StudyStore, run: RunRow) -> list[Point]:
    """Return the mean evaluations of the run's rounds; a device reports of itself and may claim anything."""
    return [
        point
        for point in results.curve(store, run.run)
        if point.round <= run.rounds and all(map(_sound, (point.accuracy, point.auroc, point.average_precision)))
    ]


def _sound(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _table(console: Console, title: str) -> Table:
    """Return a framed table on a terminal, aligned columns elsewhere."""
    framed = console.is_terminal
    return Table(title=title, title_justify="left", box=box.HEAVY_HEAD if framed else None, pad_edge=framed)


def _accuracies(points: list[Point], best: Point | None, table: Table) -> Table:
    """The end of every round and, wherever it fell, the peak."""
    for name in ("round", "after", "devices", "accuracy", "AUROC", "avg. precision", ""):
        table.add_column(name, justify="left" if name in ("after", "") else "right", no_wrap=True)
    ends = results.by_round(points)
    wanted = set(ends if len(ends) <= RECENT else [*ends[: RECENT // 2], *ends[-RECENT // 2 :]])
    for point in points:
        if point in wanted or point == best:
            qualities = (share_text(value) for value in (point.accuracy, point.auroc, point.average_precision))
            after = f"{printable(point.phase)} {point.epoch}"
            table.add_row(str(point.round), after, str(point.devices), *qualities, "peak" if point == best else "")
    return table


def remarks_on(points: list[Point], best: Point | None, run: RunRow) -> list[str]:
    """Say of the accuracies what must not be hidden."""
    remarks = []
    if best is None:
        remarks.append("no evaluation: the devices had no test set")
    else:
        remarks.append(
            f"peak accuracy {share_text(best.accuracy)} {_instant(best)}; a peak is chosen by looking at the test set"
        )
        highest = results.peak(points)
        if highest is not None and (highest.accuracy or 0.0) > (best.accuracy or 0.0):
            remarks.append(
                f"among all instants the highest is {share_text(highest.accuracy)} {_instant(highest)}, where the "
                "paper does not look for this method's peak"
            )
        if best.devices < run.devices:
            remarks.append(f"the peak is a mean over {best.devices} of {counted(run.devices, 'device')}")
        if run.method == "gca" and best.round == 1 and best.phase == "recon":
            remarks.append("the peak precedes the first alignment: no centroid had been exchanged by then")
        last = points[-1]
        remarks.append(
            f"final accuracy {share_text(last.accuracy)}, mean over {last.devices} of {counted(run.devices, 'device')} "
            f"after round {last.round}"
        )
        remarks += _fallen(points, best)
    if not run.completed:
        remarks.append(f"the run did not complete: {run.reason or 'its program was stopped'}")
    return remarks


def _fallen(points: list[Point], best: Point) -> list[str]:
    """Warn of an accuracy that fell after its peak and stayed low, and say from where on."""
    peak, last = best.accuracy or 0.0, points[-1].accuracy
    if last is None or peak - last < FALLEN:
        return []
    since = points[-1].round
    for point in reversed(results.by_round(points)):
        if point.accuracy is None or peak - point.accuracy < FALLEN:
            break
        since = point.round
    return [
        f"warning: the final accuracy is {100 * (peak - last):.1f} points below the peak of round {best.round}; from "
        f"the end of round {since} on it stayed at least {100 * FALLEN:g} below: more rounds made it worse"
    ]


def _stood_still(study: Study) -> list[str]:
    """Say that the run's clock knows nothing of links that limit nothing."""
    if study.clock == "real" or study.is_local or set(several(study.link)) != {"none"}:
        return []
    return ['link "none" limits nothing: on the virtual clock exchanges took no time, only training did; give a --link']


def _costs(store: StudyStore, run: RunRow, study: Study, input_dim: int, uploads: int, console: Console) -> Table:
    """This run beside what sending all parameters both ways would have cost.

    Payload of full-parameter exchange: 4 P for each of the `uploads` that were called for, and 4 C P down in each
    round, as every device keeps up with the common model.
    """
    parameters = architecture_for(study.training, input_dim).parameters
    ((rounds,),) = store.rows("SELECT count(*) FROM rounds WHERE run = ?", run.run)
    exchanged = Bytes(FP32 * parameters * uploads, FP32 * parameters * study.devices * rounds)
    payload = results.application_bytes(store, run.run, "payload_bytes")
    table = _table(console, "Bytes over all devices and rounds (1 kB = 1000 B)")
    table.add_column("", min_width=len("payload: tensors alone"))
    for name in ("up", "down", "both"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in (
        ("payload: tensors alone", payload),
        ("message: msgpack bodies", results.application_bytes(store, run.run, "message_bytes")),
        *_on_the_links(store, run.run),
        (f"full parameters (P = {parameters:,}), payload", exchanged),
    ):
        table.add_row(name, *(bytes_text(count) for count in _three(row)))
    pairs = zip(_three(exchanged), _three(payload), strict=True)
    table.add_row("that is, times this run's payload", *(f"{full / own:.1f} x" if own else "-" for full, own in pairs))
    return table


def _on_the_links(store: StudyStore, run: int) -> list[tuple[str, Bytes]]:
    """What crossed the links; nothing of real ones, which nobody has measured."""
    stream, wire = results.stream_bytes(store, run), results.wire_bytes(store, run)
    rows = [("stream: MQTT on the link", stream), ("wire: with TCP/IP headers", wire)]
    return rows if any(_three(stream)) else []


def agreement(store: StudyStore, run: int) -> list[str]:
    """Say whether the two ends of the wire counted the same."""
    wrong = [b for b in results.balance(store, run) if b.sent != b.received and b.kind != "telemetry"]
    if not wrong:
        return ["ledgers: bytes sent = bytes received, for every kind of message"]
    return [f"ledgers: {b.kind} {b.direction}: {b.sent:,} B sent, {b.received:,} B received" for b in wrong]


def irregularities(store: StudyStore, run: int, fates: dict[str, int]) -> list[str]:
    """Say what did not go as planned: uploads that were not used, odd messages, fallbacks of the method."""
    lines = []
    called, used = sum(fates.values()), fates.get("accepted", 0)
    if used < called:
        lost = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()) if fate != "accepted")
        lines.append(f"uploads: {used} of {called} accepted, {lost}")
    if events := results.events(store, run):
        lines.append("events: " + ", ".join(f"{kind} {count:,}" for kind, count in events))
    query = "SELECT detail FROM events WHERE run = ? AND kind = 'note' AND detail LIKE 'round %' ORDER BY rowid"
    remarks = [printable(detail) for (detail,) in store.rows(query, run)]
    lines += remarks[:REMARKS]
    if len(remarks) > REMARKS:
        lines.append(f"and {counted(len(remarks) - REMARKS, 'more remark')} like these, in the study's events")
    return lines


def _say(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _instant(point: Point) -> str:
    if point.phase == "global":
        return f"of the aggregate of round {point.round}"
    return f"after epoch {point.epoch} of phase {printable(point.phase)} in round {point.round}"


def _where(point: Point) -> dict[str, Any]:
    return {"round": point.round, "phase": point.phase, "epoch": point.epoch}


def _three(count: Bytes) -> tuple[int, int, int]:
    return count.up, count.down, count.up + count.down


def _both(count: Bytes) -> dict[str, int]:
    return {"up": count.up, "down": count.down}
