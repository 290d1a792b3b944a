"""A figure: a Vega-Lite specification with blanks, its rows, and the choices that fill the blanks.

A blank is a name with a dollar sign, such as "$x". Where it is a whole string, any value may take its place; inside a
longer string only text. Text of a study never gets into a specification's expressions: rows are data, and so are the
values that a scale lists as its domain, in which nothing is filled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """One way to fill some blanks."""

    label: str
    blanks: Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """What a reader may choose; the first option is where the figure starts."""

    label: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a line with dashes, or a patch where `dash` is None."""

    label: str
    colour: str
    dash: Sequence[int] | None = None


@dataclass(frozen=True)
class Figure:
    """`name` is fit for files. `caption` is plain text. `rows` are the data of "rows", `more` those of other names."""

    name: str
    title: str
    caption: str
    spec: Mapping[str, Any]
    rows: Sequence[Row]
    choices: tuple[Choice, ...] = ()
    legend: tuple[Key, ...] = ()
    more: Mapping[str, Sequence[Row]] = field(default_factory=dict)

    @property
    def datasets(self) -> dict[str, Sequence[Row]]:
        return {"rows": self.rows, **self.more}


def fill(value: Any, blanks: Mapping[str, Any]) -> Any:
    """Return a specification with its blanks filled; `page.js` does the same."""
    if isinstance(value, dict):
        return {
            key: inner if key == "domain" and isinstance(inner, list) else fill(inner, blanks)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [fill(inner, blanks) for inner in value]
    if isinstance(value, str) and "$" in value:
        if value in blanks:
            return blanks[value]
        for name in sorted(blanks, key=len, reverse=True):  # "$x_title" before "$x"
            if name in value:
                value = value.replace(name, str(blanks[name]))
    return value


def first_choice(figure: Figure) -> Any:
    """Return the specification as the figure starts."""
    blanks: dict[str, Any] = {}
    for choice in figure.choices:
        blanks |= choice.options[0].blanks
    return fill(dict(figure.spec), blanks)


def compact(value: float | None) -> float | None:
    """Return a number with as many digits as a plot can use; None also for what is none."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
