"""The report's numbers as CSV and its figures as PNG, beside the page."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from edge_client.errors import EnvironmentFault
from sim.report.curve import QUALITIES, CurvePoint
from sim.report.figure import Figure, first_choice
from sim.report.page import VEGA_LITE
from sim.report.study import ReportStudy
from sim.report.style import LIGHT, config, in_colours
from sim.report.totals import Costs, parts

PNG_WIDTH = 760
"""Pixels of a plot at scale 1; files hold twice as many."""


def write_csv(page: Path, studies: Iterable[tuple[str, ReportStudy, Sequence[CurvePoint], Costs]]) -> list[Path]:
    """Write the curve of every study, its totals, and the bytes by direction and part; return the three files."""
    curve: list[list[object]] = [[
        "study", "directory", "method", "dataset", "round", "phase", "epoch", "devices",
        *QUALITIES, "accuracy_p10", "accuracy_p90",
        "payload_bytes", "message_bytes", "wire_bytes", "seconds", "joules", "peak",
    ]]  # fmt: skip
    totals: list[list[object]] = [[
        "study", "directory", "method", "link", "dataset", "devices", "rounds", "seed", "peak_accuracy",
        "final_accuracy", "payload_bytes", "message_bytes", "wire_bytes", "seconds", "joules",
        "full_exchange_payload_bytes",
    ]]  # fmt: skip
    pieces: list[list[object]] = [["study", "directory", "direction", "part", "bytes"]]
    for label, study, points, one in studies:
        run, here = study.run, str(study.directory)
        for at in points:
            point, band = at.point, at.bands["accuracy"] or (None, None)
            curve.append([
                label, here, run.method, run.dataset, point.round, point.phase, point.epoch, point.devices,
                point.accuracy, point.auroc, point.average_precision, *band,
                at.at.payload_bytes, at.at.message_bytes, at.wire, at.at.seconds, at.at.joules, int(at.peak),
            ])  # fmt: skip
        totals.append([
            label, here, run.method, study.link_name, run.dataset, run.devices, run.rounds, run.seed,
            one.peak and one.peak.point.accuracy, one.final and one.final.point.accuracy,
            one.payload, one.message, one.wire, one.seconds, one.energy and one.energy.total, one.full_exchange,
        ])  # fmt: skip
        pieces += [[label, here, *piece] for piece in parts(study)]
    named = {"curve": curve, "costs": totals, "bytes": pieces}
    return [_table(page.with_name(f"{page.stem}-{name}.csv"), rows) for name, rows in named.items()]


def write_png(page: Path, figures: Iterable[Figure]) -> list[Path]:
    """Write each figure as it starts, in the light theme; return the files."""
    import vl_convert

    written = []
    for figure in figures:
        spec = {
            **in_colours(first_choice(figure), LIGHT), "width": PNG_WIDTH, "datasets": figure.datasets,
            "title": figure.title, "padding": 24,
            "config": {**in_colours(config(), LIGHT), "background": LIGHT["paper"]},
        }  # fmt: skip
        path = page.with_name(f"{page.stem}-{figure.name}.png")
        written.append(_bytes(path, vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=2)))
    return written


def _table(path: Path, rows: Iterable[Sequence[object]]) -> Path:

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_harmless(value) for value in row] for row in rows)
    return _bytes(path, text.getvalue().encode("utf-8"))


def _harmless(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _bytes(path: Path, content: bytes) -> Path:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror}; give a file that can be written as --output") from None
    return path
