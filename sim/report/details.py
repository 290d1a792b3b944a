"""How a study was made: its configuration, and the origin of every figure of its link and its board."""

from collections.abc import Mapping
from html import escape
from typing import Any

from edge_client.errors import ConfigError
from sim.hardware import Radio, radio
from sim.links.figures import Origin
from sim.report.page import address, folded, none, paragraph, table
from sim.report.study import ReportStudy
from sim.units import HARDWARE_UNITS, LINK_UNITS, RADIO_UNITS


def details(label: str, study: ReportStudy) -> str:
    """Return the folded part of one study, as HTML."""
    run = study.run
    return folded(
        label,
        paragraph(f"{study.directory}; run {run.name}; SHA-256 of the final parameters {run.state_sha256 or 'unknown'}",
                  "small"),
        f"<pre>{escape(study.text)}</pre>\n" if study.text else paragraph("The folder holds no study.toml."),
        _origins("link", study.settings.get("link"), study.link, LINK_UNITS),
        _origins("radio", study.link and study.link.radio, _radio(study), RADIO_UNITS),
        _origins("hardware", study.settings.get("hardware"), study.board, HARDWARE_UNITS),
    )  # fmt: skip


def _radio(study: ReportStudy) -> Radio | None:
    try:
        return radio(study.link.radio) if study.link and study.link.radio else None
    except ConfigError:
        return None


def _origins(kind: str, name: object, profile: Any, units: Mapping[str, str]) -> str:
    """Return a table of a profile's figures with unit, kind of knowledge and source."""
    if profile is None:
        return paragraph(f"{kind} {name}: this version knows no such profile") if name else ""
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
