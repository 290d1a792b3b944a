"""The figures that look into one study at a time: the devices' timelines, the centroids, the map of codes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edge_client.words import counted
from sim.costs.energy import ASIDE
from sim.report.figure import Choice, Figure, Key, Option, Row, compact
from sim.report.figures import MOUSE_ZOOM
from sim.report.latent import Broadcast, Floats, LatentMap
from sim.report.study import ReportStudy
from sim.report.style import DEVICES
from sim.report.timeline import STAGES, DeviceRound, outages

DEVICE_LIMIT = 60
"""Devices of one timeline: the first by name."""
BAR_LIMIT = 3_000
"""Bars of one timeline; of a longer run, or a larger fleet, the first rounds are shown that fit."""
STAGE_COLOURS = {
    "reconstruction": "var(--c0)", "upload": "var(--c1)", "wait": "var(--pale)", "alignment": "var(--c2)",
    "download": "var(--c9)", "adoption": "var(--c5)",    ASIDE: "var(--c7)",
}  # fmt: skip
FATES = {"late": "triangle-up", "rejected": "cross", "missing": "circle"}


def timeline(studies: Sequence[ReportStudy], parts: Sequence[Sequence[DeviceRound]], labels: Sequence[str]) -> Figure:
    """Each device's stages along the run's clock, with the uploads that were not used."""
    bars: list[Row] = []
    marks: list[Row] = []
    stages: dict[str, None] = {}
    down: list[Row] = []
    cut = []
    for number, (study, found) in enumerate(zip(studies, parts, strict=True)):
        names = sorted({part.device for part in found} | {device for _, device, _ in study.fates})
        shown = set(names[:DEVICE_LIMIT])
        if len(shown) < len(names):
            cut.append(f"{labels[number]}: {len(shown)} of {counted(len(names), 'device')}")
        found = [part for part in found if part.device in shown]
        last = _last_that_fits(found)
        if found and last < max(part.round for part in found):
            cut.append(f"{labels[number]}: rounds 1 to {last}")
        for part in found:
            for one in part.stages if part.round <= last else ():
                stages[one.stage] = None
                bars.append({
                    "s": number, "device": part.device, "round": part.round, "stage": one.stage,
                    "begin": compact(one.begin), "end": compact(one.end), "took": compact(one.end - one.begin),
                })  # fmt: skip
        ended = max((row["end"] for row in bars if row["s"] == number), default=0.0)
        down += [{"s": number, "device": device, "begin": compact(begin), "end": compact(min(end, ended))}
                 for device in sorted(shown) for begin, end in outages(study, device) if begin < ended]  # fmt: skip
        for round, device, fate in study.fates:
            if fate in FATES and device in shown and round <= last:
                at = compact(study.rounds[round].closed)
                marks.append({"s": number, "device": device, "round": round, "fate": fate, "at": at})
    order = [stage for stage in (*STAGES, ASIDE) if stage in stages]
    order += sorted(stages.keys() - set(order))
    spare = ("var(--c3)", "var(--c6)", "var(--c8)")
    colours = [STAGE_COLOURS.get(stage) or spare[place % len(spare)] for place, stage in enumerate(order)]
    y = {"field": "device", "type": "nominal", "title": None, "axis": {"labelLimit": 84, "labelOverlap": False}}
    # The scale is given: a study without marks would leave that of their layer without extent.
    x = {"type": "quantitative", "title": "seconds since the run began",
         "scale": {"domain": "$span"},
         "axis": {"grid": True, "tickCount": {"expr": "width < 420 ? 5 : 12"}}}  # fmt: skip
    this = {"filter": "datum.s === $study"}
    spec = {
        "width": "container", "height": "$height",
        "layer": [
            {"data": {"name": "rows"}, "transform": [this], "params": [MOUSE_ZOOM],
             "mark": {"type": "bar", "height": 11, "clip": True},
             "encoding": {
                 "y": y, "x": {**x, "field": "begin"}, "x2": {"field": "end"},
                 "color": {"field": "stage", "type": "nominal", "title": None, "legend": {"orient": "top"},
                           "scale": {"domain": order, "range": colours}},
                 "tooltip": [{"field": "device", "title": "device"}, {"field": "round", "title": "round"},
                             {"field": "stage", "title": "stage"},
                             {"field": "took", "format": ",.4~r", "title": "seconds"},
                             {"field": "begin", "format": ",.2f", "title": "from, s"}]}},
            {"data": {"name": "down"}, "transform": [this],
             "mark": {"type": "bar", "height": 3, "clip": True, "color": "var(--ink)"},
             "encoding": {"y": y, "x": {**x, "field": "begin"}, "x2": {"field": "end"},
                          "tooltip": [{"field": "device", "title": "link down"},
                                      {"field": "begin", "format": ",.2f", "title": "from, s"},
                                      {"field": "end", "format": ",.2f", "title": "to, s"}]}},
            {"data": {"name": "marks"}, "transform": [this],
             "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "color": "var(--alarm)",
                      "stroke": "var(--paper)", "strokeWidth": 1, "clip": True},
             "encoding": {
                 "y": y, "x": {**x, "field": "at"},
                 "shape": {"field": "fate", "type": "nominal", "title": None, "legend": None,
                           "scale": {"domain": list(FATES), "range": list(FATES.values())}},
                 "tooltip": [{"field": "device", "title": "device"}, {"field": "round", "title": "round"},
                             {"field": "fate", "title": "upload"},
                             {"field": "at", "format": ",.2f", "title": "round closed, s"}]}},
        ],
    }  # fmt: skip
    caption = (
        "When each stage began and ended, as the device told; an evaluation stands behind what it judged. "
        "A wait ends when the server publishes the broadcast, whose download follows. "
        + ("Line inside: the link was down. " if down else "")
        + "Red marks, where a round closed: triangle, the upload was late; cross, it was rejected; "
        "circle, it never came."
    )
    if cut:
        caption += f" Too much to be shown whole: {'; '.join(cut)}."
    keys = tuple(Key(stage, colour) for stage, colour in zip(order, colours, strict=True))
    sizes = [{"$height": 20 * max(1, len({row["device"] for row in (*bars, *marks) if row["s"] == number})),
              "$span": [0, max((row["end"] for row in bars if row["s"] == number), default=1)]}
             for number in range(len(studies))]  # fmt: skip
    return Figure("timeline", "What each device did, and when", caption, spec, bars, _choice(labels, sizes), keys,
                  {"marks": marks, "down": down[:BAR_LIMIT]})  # fmt: skip


def centroids(found: Mapping[str, Sequence[Broadcast]]) -> Figure:
    """Support and weight of every centroid over the rounds, by study."""
    rows: list[Row] = []
    for number, broadcasts in enumerate(found.values()):
        for one in broadcasts:
            mean = float(one.support.mean())
            for support, weight in zip(one.support.tolist(), one.weights.tolist(), strict=True):
                rows.append({"s": number, "round": one.round, "support": compact(support), "weight": compact(weight),
                             "mean": compact(mean), "one": 1})  # fmt: skip
    spec = {
        "width": "container", "height": 280, "data": {"name": "rows"},
        "transform": [{"filter": "datum.s === $study && datum['$y'] > 0"}],
        "encoding": {"x": {"field": "round", "type": "quantitative", "title": "round",
                           "axis": {"tickMinStep": 1, "format": "d"}, "scale": {"nice": False, "padding": 12}}},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.5, "color": "var(--muted)", "strokeDash": [4, 3]},
             "encoding": {"y": {"field": "$y_mean", "aggregate": "mean", "type": "quantitative"}}},
            {"mark": {"type": "point", "filled": True, "size": 46, "opacity": 0.55, "color": "var(--c0)"},
             "encoding": {"y": {"field": "$y", "type": "quantitative", "title": "$y_title",
                                "scale": {"type": "$scale"}},
                          "tooltip": [{"field": "round", "title": "round"},
                                      {"field": "support", "format": ",.1f", "title": "support, codes"},
                                      {"field": "weight", "format": ".3f", "title": "weight"}]}},
        ],
    }  # fmt: skip
    quantities = (
        Option("support", {"$y": "support", "$y_mean": "mean", "$y_title": "support Nₖ, codes"}),
        Option("weight", {"$y": "weight", "$y_mean": "one", "$y_title": "weight wₖ"}),
    )
    scales = Option("linear", {"$scale": "linear"}), Option("logarithmic", {"$scale": "log"})
    return Figure(
        "centroids", "Centroids: support and weight",
        "One point per centroid and round; dashed: the mean support, and the weight of a centroid that has it. Small "
        "clusters weigh more in the alignment. The clusters are fitted anew each round, so a centroid has no "
        "successor.", spec, rows, (*_choice(tuple(found)), Choice("show", quantities), Choice("scale", scales)),
    )  # fmt: skip


def codes(maps: Mapping[str, LatentMap]) -> Figure:
    """The devices' codes and the last centroids on a plane, by study."""
    rows: list[Row] = []
    marks: list[Row] = []
    names: dict[str, None] = {}
    shares, some, domains = [], False, []
    for number, (label, found) in enumerate(maps.items()):
        names |= dict.fromkeys(found.devices)
        some |= 0 < len(found.before[0]) < len(found.devices)
        for when, (devices, plane) in enumerate(((found.devices, found.codes), found.before)):
            rows += [{"s": number, "when": when, "device": device, "x": compact(x), "y": compact(y)}
                     for device, (x, y) in zip(devices, plane.tolist(), strict=True)]  # fmt: skip
        for (x, y), support, weight in zip(
            found.centroids.tolist(), found.last.support.tolist(), found.last.weights.tolist(), strict=True
        ):
            marks.append({"s": number, "x": compact(x), "y": compact(y), "support": compact(support),
                          "weight": compact(weight)})  # fmt: skip
        domains.append(_domains(np.concatenate([found.codes, found.before[1], found.centroids])))
        shares.append(f"{f'{label}: ' if len(maps) > 1 else ''}{found.explained[0]:.0%} and {found.explained[1]:.0%}")
    this = {"filter": "datum.s === $study"}
    these = {"filter": "datum.s === $study && datum.when === $when"}

    def axis(name: str, title: str) -> dict[str, Any]:
        return {"field": name, "type": "quantitative", "title": title, "scale": {"zero": False, "domain": f"${name}"},
                "axis": {"grid": True, "tickCount": 5}}  # fmt: skip

    axes = {"x": axis("x", "first principal axis"), "y": axis("y", "second principal axis")}
    colours = [DEVICES[place % len(DEVICES)] for place in range(len(names))]
    spec = {
        "width": "container", "height": 400,
        "layer": [
            {"data": {"name": "rows"}, "transform": [these],
             "mark": {"type": "point", "filled": True, "size": 26, "opacity": 0.6},
             "encoding": {**axes, "color": {"field": "device", "type": "nominal", "title": None, "legend": None,
                                             "scale": {"domain": list(names), "range": colours}},
                          "tooltip": [{"field": "device", "title": "device"}]}},
            {"data": {"name": "marks"}, "transform": [this],
             "mark": {"type": "point", "shape": "diamond", "filled": True, "opacity": 0.95, "color": "var(--ink)",
                      "stroke": "var(--paper)", "strokeWidth": 1.5},
             "encoding": {**axes, "size": {"field": "support", "type": "quantitative", "legend": None,
                                            "scale": {"range": [70, 420]}},
                          "tooltip": [{"field": "support", "format": ",.1f", "title": "support, codes"},
                                      {"field": "weight", "format": ".3f", "title": "weight"}]}},
        ],
    }  # fmt: skip
    moments = [Option(f"{word} the last alignment", {"$when": place})
            for place, word in enumerate(("after", "before")) if any(row["when"] == place for row in rows)]  # fmt: skip
    return Figure(
        "codes", "Codes and centroids",
        "Codes of each device's records, coloured by device; diamonds: the last broadcast's centroids, sized by "
        f"support. Principal axes of the codes after the last alignment, which hold {'; '.join(shares)} of their "
        f"variance. {_ON_BEFORE[bool(some), len(moments) > 1]}",
        spec, rows, (*_choice(tuple(maps), domains), Choice("codes", tuple(moments))), more={"marks": marks},
    )  # fmt: skip


def _domains(points: Floats) -> Row:
    """Return the blanks of both axes: one plane for the codes before and after, so that they can be compared."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = 0.04 * np.maximum(high - low, 1e-9)
    return {f"${name}": [compact(a), compact(b)] for name, a, b in zip("xy", low - room, high + room, strict=True)}


_ON_BEFORE = {
    (False, False): "Those before it are not kept, and bringing them back would take long.",
    (False, True): "Those before it were brought back by running the devices again.",
    (True, True): "Those before it were brought back by running devices again, as many as that is quick for.",
}


def _choice(labels: Sequence[str], more: Sequence[Row] = ()) -> tuple[Choice, ...]:
    """Let the reader choose the study, which may fill `more` blanks.

    Studies are numbers in expressions, because a name may hold anything.
    """
    options = (Option(label, {"$study": place, **(more[place] if more else {})}) for place, label in enumerate(labels))
    return (Choice("study", tuple(options)),)


def _last_that_fits(found: Sequence[DeviceRound]) -> int:
    bars: dict[int, int] = {}
    for part in found:
        bars[part.round] = bars.get(part.round, 0) + len(part.stages)
    last = total = 0
    for round in sorted(bars):
        total += bars[round]
        if total > BAR_LIMIT and last:
            break
        last = round
    return last
