"""Colours and the look of a plot. A method has one colour in every report; studies of one method differ by dashes."""

from collections.abc import Sequence
from typing import Any

LIGHT = {
    "ink": "#1b2129", "muted": "#626c7a", "rule": "#dde1e7", "paper": "#ffffff", "pale": "#c3cad4", "alarm": "#c9302c",
    "c0": "#2b66d1", "c1": "#d5700b", "c2": "#2a8a55", "c3": "#7f52e0", "c4": "#cf3f3f", "c5": "#0c8496",
    "c6": "#8a6240", "c7": "#bd3f88", "c8": "#737c89", "c9": "#77831a",
}  # fmt: skip
DARK = {
    "ink": "#e8ebf0", "muted": "#98a2b0", "rule": "#2d343e", "paper": "#14181d", "pale": "#4b5563", "alarm": "#ff6f66",
    "c0": "#6c9fff", "c1": "#f2964a", "c2": "#54c287", "c3": "#b29bff", "c4": "#ff7f7f", "c5": "#3cc3d5",
    "c6": "#c79a72", "c7": "#ef8ac2", "c8": "#a3abb7", "c9": "#b7c448",
}  # fmt: skip
"""CSS variables by name; a figure names them as `var(--c0)`, so that it follows the reader's theme, also in print."""

METHODS = {
    "gca": "c0", "fedavg": "c1", "fedprox": "c2", "fednova": "c3", "dp_fedavg": "c4", "centralized": "c5",
    "single": "c8",
}  # fmt: skip
SPARE = ("c7", "c6", "c9", "c5", "c3", "c2")
"""Colours of methods that nobody knows, in the order of their names."""
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (12, 4), (4, 2, 1, 2))
DEVICES = tuple(f"var(--c{number})" for number in range(10))

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def method_colours(methods: Sequence[str]) -> dict[str, str]:
    """Return the colour of each method."""
    unknown = sorted(set(methods) - METHODS.keys())
    names = METHODS | {method: SPARE[place % len(SPARE)] for place, method in enumerate(unknown)}
    return {method: f"var(--{names[method]})" for method in methods}


def dashes(methods: Sequence[str]) -> list[list[int]]:
    """Return the dash of each study, given the method of each: the first of a method is solid."""
    return [list(DASHES[methods[:place].count(method) % len(DASHES)]) for place, method in enumerate(methods)]


def config() -> dict[str, Any]:
    """Return the Vega-Lite configuration of all figures."""
    text = {"font": FONT, "fontSize": 12, "color": "var(--muted)"}
    labels = {f"label{key[:1].upper()}{key[1:]}": value for key, value in text.items()}
    titles = {f"title{key[:1].upper()}{key[1:]}": value for key, value in text.items()}
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **labels, **titles, "titleFontWeight": "normal", "titlePadding": 10, "labelPadding": 6,
            "gridColor": "var(--rule)", "domain": False, "ticks": False, "labelOverlap": True,
        },
        "axisX": {"grid": False, "domain": True, "domainColor": "var(--pale)"},
        "legend": {**labels, **titles, "titleFontWeight": "normal", "labelLimit": 400, "symbolStrokeWidth": 2},
        "title": {"font": FONT, "fontSize": 15, "fontWeight": 600, "color": "var(--ink)", "anchor": "start",
                  "offset": 12},
    }  # fmt: skip


def in_colours(value: Any, theme: dict[str, str]) -> Any:
    """Return a specification with its CSS variables replaced by a theme's colours, for where there is no CSS."""
    if isinstance(value, dict):
        return {key: in_colours(inner, theme) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [in_colours(inner, theme) for inner in value]
    if isinstance(value, str) and value.startswith("var(--"):
        return theme[value.removeprefix("var(--").removesuffix(")")]
    return value
