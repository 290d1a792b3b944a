"""The figures that compare studies: accuracy against its costs, where the bytes went, how long things took."""

import json
import math
from collections.abc import Sequence
from typing import Any

from sim.report.curve import QUALITIES, CurvePoint
from sim.report.figure import Choice, Figure, Key, Option, Row, compact
from sim.report.study import ReportStudy
from sim.report.timeline import QUANTILES, place, quantiles
from sim.report.totals import PARTS, parts
from sim.screen.units import bytes_text, duration_text

MOUSE_ZOOM = {
    "name": "zoom",
    "select": {
        "type": "interval",
        "encodings": ["x"],
        # A finger scrolls the page, and so does the wheel by itself.
        "translate": "[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!",
        "zoom": "wheel![event.shiftKey]",
    },
    "bind": "scales",
}
BYTES_LABEL = "replace(format(datum.value, '~s'), regexp('([a-zA-Z]?)$'), ' $1B')"
PLAIN_LABEL = "format(datum.value, ',~r')"
AXES = (
    ("wire", "bytes on the wire", "bytes on the wire, cumulative over all devices", BYTES_LABEL),
    ("message", "message bytes", "message bytes, cumulative over all devices", BYTES_LABEL),
    ("payload", "payload bytes", "payload bytes, cumulative over all devices", BYTES_LABEL),
    ("seconds", "seconds", "seconds since the run began", PLAIN_LABEL),
    ("joules", "joules", "joules, cumulative over all devices", PLAIN_LABEL),
    ("rounds", "rounds", "rounds", PLAIN_LABEL),
)
"""What accuracy is drawn against: field, name, title and labels; what no study has is left out."""
QUALITY_NAMES = {"accuracy": "accuracy", "auroc": "AUROC", "average_precision": "average precision"}
PART_COLOURS = ("var(--c0)", "var(--c5)", "var(--c2)", "var(--c7)", "var(--c1)", "var(--pale)")
SHORTEST = 0.001
"""Seconds; a logarithmic axis begins somewhere."""


def accuracy(studies: Sequence[ReportStudy], curves: Sequence[Sequence[CurvePoint]], legend: tuple[Key, ...]) -> Figure:
    """Accuracy against bytes, seconds and rounds, one line per study."""
    rows = [row for key, curve in zip(legend, curves, strict=True) for row in _curve_rows(key.label, curve)]
    axes = [
        Option(name, {"$x": field, "$x_title": title, "$x_label": label, "$decades": _decades(rows, field)})
        for field, name, title, label in AXES
        if any(row[field] for row in rows)
    ]
    scales = [Option("linear", {"$scale": "linear"}), Option("logarithmic", {"$scale": "log"})]
    totals = [max((row["message"] for row in rows if row["study"] == key.label), default=0) for key in legend]
    if max(totals, default=0) > 20 * max(1, min(totals, default=0)):
        scales.reverse()
    colour = _study_scale(legend)
    x = {
        "field": "$x", "type": "quantitative", "title": "$x_title", "scale": {"type": "$scale", "nice": False},
        "axis": {"labelExpr": "$x_label", "tickCount": {"expr": "width < 420 ? 4 : 8"},
                 "values": {"expr": "'$scale' === 'log' ? $decades : null"}},
    }  # fmt: skip
    y = {"type": "quantitative", "scale": {"zero": False}, "title": "$y_title", "axis": {"format": ".0%"}}
    usable = {"filter": "isValid(datum['$x']) && isValid(datum['$y']) && ('$scale' === 'linear' || datum['$x'] > 0)"}
    tooltip = [
        {"field": "study", "title": "study"},
        {"field": "at", "title": "after"},
        {"field": "accuracy", "format": ".2%", "title": "accuracy"},
        {"field": "auroc", "format": ".2%", "title": "AUROC"},
        {"field": "average_precision", "format": ".2%", "title": "average precision"},
        {"field": "devices", "title": "devices"},
        {"field": "cost", "title": "cost by then"},
    ]
    spec = {
        "width": "container", "height": 320, "data": {"name": "rows"}, "transform": [usable],
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"transform": [{"filter": "$points"}], "mark": {"type": "area", "opacity": 0.13, "line": False},
             "encoding": {"y": {**y, "field": "$y_low"}, "y2": {"field": "$y_high"}}},
            {"transform": [{"filter": "$points"}], "mark": {"type": "line", "strokeWidth": 2, "strokeJoin": "round"},
             "encoding": {"y": {**y, "field": "$y"}, "strokeDash": _dash_scale(legend)}},
            {"transform": [{"filter": "datum.peak"}],
             "mark": {"type": "point", "shape": "diamond", "size": 90, "filled": True, "opacity": 1,
                      "stroke": "var(--paper)", "strokeWidth": 1.5},
             "encoding": {"y": {**y, "field": "$y"}}},
            {"transform": [{"filter": "$points"}], "mark": {"type": "point", "filled": True, "size": 55},
             "params": [{"name": "near", "select": {"type": "point", "on": "pointermove", "nearest": True,
                                                    "clear": "pointerout"}}, MOUSE_ZOOM],
             "encoding": {"y": {**y, "field": "$y"}, "tooltip": tooltip,
                          "opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}}},
        ],
    }  # fmt: skip
    qualities = tuple(
        Option(QUALITY_NAMES[quality], {"$y": quality, "$y_low": f"{quality}_low", "$y_high": f"{quality}_high",
                                        "$y_title": f"{QUALITY_NAMES[quality]}, mean over devices"})
        for quality in QUALITIES
        if any(row[quality] is not None for row in rows)
    )  # fmt: skip
    detail = Option("each round", {"$points": "datum.end"}), Option("every epoch", {"$points": "true"})
    return Figure(
        "accuracy", "Accuracy against what it cost",
        "Line: mean over devices; band: the middle 80 % of them; diamond: the peak, which is chosen by looking at the "
        "test set. An epoch before its round's upload has cost what the rounds before it cost, any other includes its "
        "own round. Bytes are over all devices and both directions; 1 kB = 1000 B; a link's counters are read "
        "when a round is published, so that its broadcast is on the wire of the next. The line of rounds begins at the "
        "last evaluation before the first upload. A logarithmic axis has no place for what cost nothing. "
        f"{_joules_told(curves)}",
        spec, rows,
        (Choice("against", tuple(axes)), Choice("show", qualities), Choice("scale", tuple(scales)),
         Choice("points", detail)),
        legend,
    )  # fmt: skip


def bytes_by_part(studies: Sequence[ReportStudy], legend: tuple[Key, ...]) -> Figure:
    """What the bytes of each study are made of, in each direction."""
    rows: list[Row] = []
    for key, study in zip(legend, studies, strict=True):
        found = parts(study)
        for direction, part, count in found:
            total = sum(other for way, _, other in found if way == direction)
            row = {"row": f"{key.label}, {direction}: {bytes_text(total)}", "part": part, "bytes": count}
            rows.append(row | {"order": PARTS.index(part), "study": key.label, "direction": direction})
    present = [part for part in PARTS if any(row["part"] == part for row in rows)]
    colours = dict(zip(PARTS, PART_COLOURS, strict=True))
    spec = {
        "width": "container", "height": 44 * len({row["row"] for row in rows}), "data": {"name": "rows"},
        "mark": {"type": "bar", "height": 14},
        "encoding": {
            "y": {"field": "row", "type": "nominal", "sort": None, "title": None,
                  "axis": {"labelAlign": "left", "labelPadding": -2, "labelOffset": -15, "labelLimit": 420,
                           "labelColor": "var(--ink)"}},
            "x": {"field": "bytes", "type": "quantitative", "stack": "$stack", "title": "$x_title",
                  "axis": {"labelExpr": "$x_label", "grid": True, "tickCount": {"expr": "width < 420 ? 4 : 8"}}},
            "order": {"field": "order"},
            "color": {"field": "part", "type": "nominal", "title": None,
                      "scale": {"domain": present, "range": [colours[part] for part in present]},
                      "legend": {"orient": "top", "columns": 3}},
            "tooltip": [{"field": "study", "title": "study"}, {"field": "direction", "title": "direction"},
                        {"field": "part", "title": "part"}, {"field": "bytes", "format": ",", "title": "bytes"}],
        },
    }  # fmt: skip
    amounts = (
        Option("bytes", {"$stack": "zero", "$x_title": "bytes over all devices and rounds", "$x_label": BYTES_LABEL}),
        Option("shares", {"$stack": "normalize", "$x_title": "share of the direction's bytes",
                          "$x_label": "format(datum.value, '.0%')"}),
    )  # fmt: skip
    return Figure(
        "bytes", "Where the bytes went",
        "Tensors are the paper's payload; with envelopes and control messages they make the message ledger, with "
        "MQTT's framing the stream, and with headers and acknowledgements of TCP/IP the wire. Up: device to server. "
        "Telemetry travels beside the links and is not counted.",
        spec, rows, (Choice("as", amounts),), tuple(Key(part, colours[part]) for part in present),
    )  # fmt: skip


def round_times(studies: Sequence[ReportStudy], legend: tuple[Key, ...]) -> Figure:
    """Quantiles of the rounds' and the stages' seconds."""
    rows: list[Row] = []
    for key, study in zip(legend, studies, strict=True):
        for what, values, count in quantiles(study):
            drawn = {f"q{round(100 * q)}": compact(max(value, SHORTEST))
                     for q, value in zip(QUANTILES, values, strict=True)}  # fmt: skip
            rows.append({"what": what, "study": key.label, "count": count, **drawn})
    rows.sort(key=lambda row: place(row["what"]))
    stages = len({row["what"] for row in rows})
    y: dict[str, Any] = {"field": "what", "type": "nominal", "sort": None, "title": None,
                         "axis": {"labelColor": "var(--ink)", "labelLimit": 110}}  # fmt: skip
    offset = {"field": "study", "type": "nominal", "sort": None}
    x = {"type": "quantitative", "title": "seconds", "scale": {"type": "$scale"},
         "axis": {"grid": True, "labelExpr": PLAIN_LABEL, "values": "$values"}}  # fmt: skip
    shown = [(f"q{round(100 * q)}", name) for q, name in zip(
        QUANTILES, ("5 %", "25 %", "median", "75 %", "95 %"), strict=True)]  # fmt: skip
    tooltip = [{"field": "study", "title": "study"}, {"field": "what", "title": "stage"},
               *({"field": name, "format": ",.4~r", "title": f"{title}, s"} for name, title in shown),
               {"field": "count", "title": "measured"}]  # fmt: skip
    spec = {
        "width": "container", "height": stages * (30 if len(studies) == 1 else 12 + 14 * len(studies)),
        "data": {"name": "rows"},
        "encoding": {"y": y, "yOffset": offset, "color": _study_scale(legend), "tooltip": tooltip},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 1.5},
             "encoding": {"x": {**x, "field": "q5"}, "x2": {"field": "q95"}}},
            {"mark": {"type": "bar", "height": 8, "cornerRadius": 2},
             "encoding": {"x": {**x, "field": "q25"}, "x2": {"field": "q75"}}},
            {"mark": {"type": "point", "size": 38, "opacity": 1, "fill": "var(--paper)", "strokeWidth": 2},
             "encoding": {"x": {**x, "field": "q50"}}},
        ],
    }  # fmt: skip
    powers = [10.0**exponent for exponent in range(-3, 7)]
    scales = (
        Option("logarithmic", {"$scale": "log", "$values": powers}),
        Option("linear", {"$scale": "linear", "$values": None}),
    )
    return Figure(
        "round-times", "How long rounds and their stages took",
        "Point: median; bar: the middle half; line: from 5 to 95 %. A round is the server's, from its opening to the "
        "publication of its broadcast; stages are each device's, over all rounds. What took less than 1 ms is drawn "
        "at 1 ms. Evaluation is the instrument's own time, which no device in the field spends.",
        spec, rows, (Choice("scale", scales),), legend,
    )  # fmt: skip


def _joules_told(curves: Sequence[Sequence[CurvePoint]]) -> str:
    """Say what the joules lack; nothing where no study has any."""
    energies = [curve[-1].at.energy for curve in curves if curve and curve[-1].at.joules is not None]
    unknown = dict.fromkeys(part for energy in energies if energy for part in energy.unknown)
    if not unknown:
        return ""
    return f"Joules are a lower bound: nobody knows those of {', '.join(unknown)}."


def _curve_rows(label: str, curve: Sequence[CurvePoint]) -> list[Row]:
    rows: list[Row] = []
    unpaid = [one for one in curve if one.free]
    for one in curve:
        row: Row = {
            "study": label, "at": f"round {one.point.round}, {one.point.phase} {one.point.epoch}",
            "devices": one.point.devices, "rounds": compact(one.rounds), "seconds": compact(one.at.seconds),
            "payload": one.at.payload_bytes, "message": one.at.message_bytes, "wire": one.wire,
            "joules": compact(one.at.joules), "peak": one.peak,
            "end": one.last or (one.free and one is unpaid[-1]),
        }  # fmt: skip
        ledgers = [(name, row[name]) for name in ("wire", "message", "payload") if row[name] is not None]
        energy = [] if one.at.joules is None else [f"{one.at.joules:,.3g} J"]
        spent = [*(f"{name} {bytes_text(count)}" for name, count in ledgers), duration_text(one.at.seconds), *energy]
        row["cost"] = ", ".join(spent)
        for quality in QUALITIES:
            band = one.bands[quality]
            row[quality] = compact(getattr(one.point, quality))
            row[f"{quality}_low"], row[f"{quality}_high"] = map(compact, band) if band else (None, None)
        rows.append(row)
    return rows


def _decades(rows: Sequence[Row], field: str) -> str:
    """Return the ticks of a logarithmic axis, as a list in Vega's language: 1, 2, 5 and so on where there is room."""
    values = [row[field] for row in rows if row[field]]
    low, high = (math.floor(math.log10(value)) for value in (min(values), max(values)))
    steps = (1, 2, 5) if high - low < 2 else (1,)
    return json.dumps([step * 10.0**power for power in range(low, high + 1) for step in steps])


def _study_scale(legend: Sequence[Key]) -> dict[str, Any]:
    return {
        "field": "study", "type": "nominal", "title": None,
        "scale": {"domain": [key.label for key in legend], "range": [key.colour for key in legend]},
        "legend": {"orient": "top", "direction": "vertical"} if len(legend) > 1 else None,
    }  # fmt: skip


def _dash_scale(legend: Sequence[Key]) -> dict[str, Any]:
    scale = {"domain": [key.label for key in legend], "range": [list(key.dash or (1, 0)) for key in legend]}
    shown = {"orient": "top", "direction": "vertical"} if len(legend) > 1 else None
    return {"field": "study", "type": "nominal", "title": None, "scale": scale, "legend": shown}
