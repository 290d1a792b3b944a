"""How a study was made: its configuration, and the origin of every figure of its link and its board."""

from collections.abc import Mapping
from html import escape
from typing import Any

from edge_client.errors import ConfigError
from sim.config.hardware import Radio, radio
from sim.links.figures import Origin
from sim.report.page import address, folded, none, paragraph, table
from sim.report.study import ReportStudy
from sim.screen.units import HARDWARE_UNITS, LINK_UNITS, RADIO_UNITS

REAL = "These devices were real: what the configuration says of dataset, link and hardware did not apply to them."


def details(label: str, study: ReportStudy) -> str:
    """Return the folded part of one study, as HTML."""
    run = study.run
    return folded(
        label,
        paragraph(f"{study.directory}; run {run.name}; SHA-256 of the final parameters {run.state_sha256 or 'unknown'}",
                  "small"),
        f"<pre>{escape(study.text)}</pre>\n" if study.text else paragraph("The folder holds no study.toml."),
        "" if study.links_counted else paragraph(REAL),
        *(_origins("link", name, profile, LINK_UNITS) for name, profile in study.links.items()),
        *(_origins("radio", name, _radio(name), RADIO_UNITS) for name in _radios(study)),
        *(_origins("hardware", name, board, HARDWARE_UNITS) for name, board in study.boards.items()),
    )  # fmt: skip


def _radios(study: ReportStudy) -> list[str]:
    """Return the radios that the study's links name, each once."""
    return list(dict.fromkeys(one.radio for one in study.links.values() if one and one.radio))


def _radio(name: str) -> Radio | None:
    try:
        return radio(name)
    except ConfigError:
        return None


def _origins(kind: str, name: str, profile: Any, units: Mapping[str, str]) -> str:
    """Return a table of a profile's figures with unit, kind of knowledge and source."""
    if profile is None:
        return paragraph(f"{kind} {name}: this version knows no such profile")
    rows = []
    for figure, unit in units.items():
        value, origin = getattr(profile, figure), profile.provenance.get(figure)
        if value is not None or origin is not None:
            rows.append([escape(figure), _value(value, unit), escape(origin.tag if origin else "-"), _source(origin)])
    title = f"{kind} {profile.name}" + (f": {profile.note}" if profile.note else "")
    return f"<h3>{escape(title)}</h3>\n" + (
        table((kind, "figure", "how known", "from"), rows, "cards text") if rows else
        paragraph("As this machine is: nothing is emulated.")
    )  # fmt: skip


def _value(value: float | None, unit: str) -> str:
    return none("unlimited") if value is None else escape(f"{value:,.12g} {unit}".rstrip())


def _source(origin: Origin | None) -> str:
    if origin is None:
        return ""
    return " ".join([escape(origin.note), *map(address, origin.sources)]).strip()
