"""The tables that come first: what each study reached, and what it cost."""

from collections.abc import Sequence
from html import escape

from edge_client.words import counted
from sim.costs.energy import Energy
from sim.report.curve import CurvePoint
from sim.report.figure import Key
from sim.report.page import cell, chip, none, paragraph, table
from sim.report.study import ReportStudy
from sim.report.totals import Costs
from sim.screen.units import bytes_text, duration_text, share_text

Rows = Sequence[tuple[Key, ReportStudy, Costs]]


def facts(study: ReportStudy) -> str:
    """Return what a study was about, beside its method and link."""
    run = study.run
    done = "" if run.completed else f" ({len(study.rounds)} finished)"
    return f"{study.data_name}, {counted(run.devices, 'device')}, {counted(run.rounds, 'round')}{done}, seed {run.seed}"


def summary_table(rows: Rows) -> str:
    """Return peak and final accuracy beside the totals."""
    head = ["study", "peak accuracy", "final accuracy", "on the wire", "messages", "payload", "time on the clock"]
    alike = len({facts(study) for _, study, _ in rows}) == 1  # then the page says it once
    burnt = any(one.energy and one.energy.total is not None for *_, one in rows)
    return table([*head, *(["energy"] if burnt else [])], [[
        _study(key, study, brief=alike),
        _accuracy(one.peak, _where(one.peak)),
        _accuracy(one.final, f"AUROC {share_text(one.final.point.auroc)}" if one.final else ""),
        _bytes(one.wire, "not counted"),
        _bytes(one.message),
        _payload(one),
        cell(duration_text(one.seconds)) if one.seconds is not None else none("not known"),
        *([_energy(one.energy)] if burnt else []),
    ] for key, study, one in rows])  # fmt: skip


def targets_table(rows: Rows) -> str:
    """Return what it took to first reach a few accuracies; "not reached" is an answer."""
    aims = [target for target, _ in rows[0][2].targets]
    if not any(one.peak for *_, one in rows):
        return ""
    head = ("study", *(f"{100 * aim:.0f} % accuracy" for aim in aims))
    cells = [
        [_study(key, study, brief=True), *(_reached(found) for _, found in one.targets)] for key, study, one in rows
    ]
    return "<h3>What it took to first reach an accuracy</h3>\n" + table(head, cells)


def attacks_table(rows: Rows) -> str:
    """Return what attacks on the studies' devices found; empty where none was made."""
    head = ("study", "attack", "device", "NTMSE", "excess cosine", "starts and steps")
    found = [
        [_study(key, study, brief=True),
         cell(one.attack, f"the attacker also knows: {one.knows}" if one.knows else ""), cell(one.device),
         _score(one.ntmse), _score(one.excess_cosine), cell(f"{one.starts} x {one.steps}")]
        for key, study, _ in rows for one in study.attacks
    ]  # fmt: skip
    told = "Higher NTMSE and lower excess cosine mean that less leaked; both are ratios or differences without a unit."
    return paragraph(told) + table(head, found) if found else ""


def _score(value: float | None) -> str:
    return none("-") if value is None else cell(f"{value:.3g}")


def _study(key: Key, study: ReportStudy, *, brief: bool = False) -> str:
    small = "" if brief else f"<small>{escape(facts(study))}</small>"
    return f"<span>{chip(key)} {escape(key.label)}</span>{small}"


def _accuracy(one: CurvePoint | None, small: str) -> str:
    if one is None or one.point.accuracy is None:
        return none("-", "not evaluated")
    return f"<b>{share_text(one.point.accuracy)}</b><small>{escape(small)}</small>"


def _where(one: CurvePoint | None) -> str:
    if one is None:
        return ""
    where = f"round {one.point.round}, {one.point.phase} {one.point.epoch}"
    return f"{where}, before any upload" if one.free else where


def _reached(one: CurvePoint | None) -> str:
    if one is None:
        return none("not reached")
    count = (one.at.message_bytes, "in messages") if one.wire is None else (one.wire, "on the wire")
    after = "no upload yet" if one.free else f"round {one.point.round}"
    return cell(f"{bytes_text(count[0])} {count[1]}", f"{duration_text(one.at.seconds)}, {after}")


def _payload(one: Costs) -> str:
    if not one.full_exchange:
        return cell(bytes_text(one.payload))
    times = one.full_exchange / one.payload if one.payload else 0.0
    return cell(bytes_text(one.payload), f"1 / {times:,.1f} of all parameters" if times > 1 else "")


def _energy(one: Energy | None) -> str:
    if one is None or not one.total:  # a bound of zero says nothing
        return none("not known")
    least = "at least " if one.unknown else ""
    return cell(f"{least}{one.total:,.3g} J", f"without {', '.join(one.unknown)}" if one.unknown else "")


def _bytes(count: int | None, absent: str = "") -> str:
    return none(absent) if count is None else cell(bytes_text(count))
