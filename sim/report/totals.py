"""What a study cost in all, and where its bytes went."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker_server.study.checkpoint import load_checkpoint
from edge_client.errors import EnvironmentFault
from edge_client.protocol.codec import FP32
from sim.costs.energy import Energy
from sim.report.curve import CurvePoint, first_at
from sim.report.study import ReportStudy

PARTS = (
    "tensors", "message envelopes", "control messages", "MQTT framing", "TCP/IP headers", "TCP acknowledgements",
)  # fmt: skip
"""What bytes on a link are made of, from the paper's payload outwards."""


@dataclass(frozen=True)
class Costs:
    """Totals of one study. Bytes over all devices and both directions, seconds on the run's clock.

    `energy` is in joules, until the last evaluation. `full_exchange`: payload of sending all `parameters` up for every
    upload that was called for, and down to every device in every round. `targets` holds (accuracy, where the curve
    first reached it or None). None: not known of this study.
    """

    peak: CurvePoint | None
    final: CurvePoint | None
    payload: int
    message: int
    wire: int | None
    seconds: float | None
    energy: Energy | None
    parameters: int | None
    full_exchange: int | None
    targets: tuple[tuple[float, CurvePoint | None], ...]


def costs(study: ReportStudy, curve: Sequence[CurvePoint], targets: Sequence[float]) -> Costs:
    """Return what a study cost."""
    parameters = _parameters(study)
    return Costs(
        next((one for one in curve if one.peak), None), curve[-1] if curve else None,
        sum(one.payload for one in study.traffic), sum(one.message for one in study.traffic),
        sum(one.wire for one in study.crossings) if study.links_counted else None, study.run.seconds_clock,
        curve[-1].at.energy if curve else None, parameters,
        None if parameters is None else FP32 * parameters * _exchanges(study),
        tuple((target, first_at(curve, target)) for target in targets),
    )  # fmt: skip


def parts(study: ReportStudy) -> list[tuple[str, str, int]]:
    """Return (direction, one of PARTS, bytes) for all that was sent.

    The links' own parts are left out where no link was counted, and where fewer bytes crossed than messages were
    counted: then some of them never did, and what the rest is made of cannot be told.
    """
    found = []
    for direction in ("up", "down"):
        here = [one for one in study.traffic if one.direction == direction]
        tensors, messages = sum(one.payload for one in here), sum(one.message for one in here)
        control = sum(one.message for one in here if one.kind not in ("upload", "broadcast"))
        counts = [tensors, messages - control - tensors, control]
        links = [one for one in study.crossings if one.direction == direction]
        stream, wire, acks = (sum(getattr(one, what) for one in links) for what in ("stream", "wire", "acks"))
        if links and stream >= messages:
            counts += [stream - messages, wire - acks - stream, acks]
        found += [(direction, part, count) for part, count in zip(PARTS, counts, strict=False)]
    return found


def _exchanges(study: ReportStudy) -> int:
    """Return how often a model would travel; a method without uploads is compared with everyone's taking part."""
    down = study.run.devices * len(study.rounds)
    return (len(study.fates) or down) + down


def _parameters(study: ReportStudy) -> int | None:
    """Return P of the study's model, as its devices left it; None where they left none."""
    for path in sorted((study.directory / "models").glob("*.safetensors")):
        try:
            return int(load_checkpoint(path)[0]["parameters"].size)
        except (EnvironmentFault, KeyError):
            continue
    return None
