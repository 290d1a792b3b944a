"""What a study tells a tool that draws scalars over whole steps: its curve, its costs, its rounds, its settings.

Such tools know one horizontal axis, the step, and the time of day. So every quality is told over the evaluations, and
the accuracy once more over each cost: there the step is the cost itself, in a unit small enough to be whole.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from sim.report.build import labels
from sim.report.curve import QUALITIES, CurvePoint, curve, targets
from sim.report.study import ReportStudy, read_study
from sim.report.totals import Costs, costs

FATES = ("accepted", "late", "rejected", "missing")


@dataclass(frozen=True)
class Scalar:
    """One value of a series; `seconds` since the run began, on its own clock."""

    name: str
    step: int
    value: float
    seconds: float


@dataclass(frozen=True)
class Exported:
    """One study, ready to be written. `name` is fit for a folder and distinct among those exported together.

    `began` is the time of day of the run's beginning (seconds since 1970), `settings` its configuration with dotted
    keys, `totals` what stands at the end: peak and final accuracy and what the whole run cost.
    """

    name: str
    directory: Path
    run: str
    completed: bool
    began: float
    settings: Mapping[str, str]
    scalars: tuple[Scalar, ...]
    totals: Mapping[str, float]


def exported(directories: Sequence[Path]) -> list[Exported]:
    """Read studies; raises `EnvironmentFault` for a folder that holds none, or none with a finished round."""
    studies = [read_study(directory) for directory in dict.fromkeys(directories)]
    found = []
    for label, study in zip(labels(studies), studies, strict=True):
        points = curve(study)
        peaks = [one.point.accuracy for one in points if one.peak and one.point.accuracy is not None]
        found.append(Exported(
            _file_name(label), study.directory, study.run.name, bool(study.run.completed), _began(study.directory),
            settings(study), tuple(scalars(study, points)), totals(costs(study, points, targets(peaks))),
        ))  # fmt: skip
    return found


def scalars(study: ReportStudy, points: Sequence[CurvePoint]) -> list[Scalar]:
    """Return all series of a study, each in the order of its steps."""
    found = []
    for step, one in enumerate(points, start=1):
        at = one.at
        spent = {"payload_bytes": at.payload_bytes, "message_bytes": at.message_bytes, "wire_bytes": one.wire,
                 "seconds": at.seconds, "joules": at.joules, "round": one.rounds}  # fmt: skip
        qualities = {name: getattr(one.point, name) for name in (*QUALITIES, "loss")}
        values = {**qualities, **{f"spent/{name}": value for name, value in spent.items()}}
        found += [Scalar(name, step, float(value), at.seconds) for name, value in values.items() if _sound(value)]
        if one.point.accuracy is not None:
            axes = {"wire_bytes": one.wire, "message_bytes": at.message_bytes, "payload_bytes": at.payload_bytes,
                    "milliseconds": _thousandths(at.seconds), "millijoules": _thousandths(at.joules)}  # fmt: skip
            if one.last:
                axes["rounds"] = one.point.round
            found += [Scalar(f"accuracy_over/{name}", step, one.point.accuracy, at.seconds)
                      for name, step in axes.items() if step is not None]  # fmt: skip
    fates = Counter((round, fate) for round, _, fate in study.fates)
    for round, times in sorted(study.rounds.items()):
        values = {"seconds": times.published - times.opened, **{fate: fates[round, fate] for fate in FATES}}
        found += [Scalar(f"round/{name}", round, float(value), times.published) for name, value in values.items()]
    return sorted(found, key=lambda one: one.name)  # sorting keeps the order within a series


def settings(study: ReportStudy) -> dict[str, str]:
    """Return the configuration with dotted keys; without a configuration, what the run's row knows."""
    run = study.run
    known = {"dataset": run.dataset, "method": run.method, "devices": run.devices, "rounds": run.rounds,
             "seed": run.seed}  # fmt: skip
    return {key: str(value) for key, value in {**known, **_dotted(study.settings)}.items()}


def totals(one: Costs) -> dict[str, float]:
    """Return what a study reached and cost, without what is not known."""
    values: dict[str, float | None] = {
        "peak_accuracy": one.peak.point.accuracy if one.peak else None,
        "final_accuracy": one.final.point.accuracy if one.final else None,
        "total_payload_bytes": one.payload, "total_message_bytes": one.message, "total_wire_bytes": one.wire,
        "total_seconds": one.seconds, "total_joules": one.energy.total if one.energy else None,
    }  # fmt: skip
    return {name: float(value) for name, value in values.items() if value is not None and isfinite(value)}


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in tree.items():
        found |= _dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _began(directory: Path) -> float:
    """Return when the study's configuration was written, which is when its run began."""
    return min(path.stat().st_mtime for path in directory.iterdir() if path.suffix in (".toml", ".sqlite"))


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "study"


def _thousandths(value: float | None) -> int | None:
    return None if value is None else round(1000 * value)


def _sound(value: float | None) -> bool:
    return value is not None and isfinite(value)
