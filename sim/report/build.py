"""From study folders to a report: read, compute, draw, write."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path

from edge_client.errors import EnvironmentFault, GcaError
from edge_client.words import counted
from sim.report import figures, latent
from sim.report.before import before_last_alignment
from sim.report.curve import CurvePoint, curve, targets
from sim.report.details import details
from sim.report.device_figures import centroids, codes, timeline
from sim.report.export import write_csv, write_png
from sim.report.figure import Figure, Key
from sim.report.page import figure_section, listing, page, paragraph, section
from sim.report.study import ReportStudy, read_study
from sim.report.style import dashes, method_colours
from sim.report.tables import attacks_table, facts, summary_table, targets_table
from sim.report.timeline import DeviceRound, device_rounds
from sim.report.totals import Costs, costs

MOST = 24
"""Studies in one report: more lines than that nobody can tell apart."""


@dataclass(frozen=True)
class Entry:
    """A study with all that is computed of it, under its label."""

    study: ReportStudy
    key: Key
    parts: list[DeviceRound]
    curve: list[CurvePoint]
    costs: Costs


def build_report(directories: Sequence[Path], output: Path | None = None, *, csv: bool = False, png: bool = False,
                 note: Callable[[str], None] = lambda text: None) -> list[Path]:  # fmt: skip
    """Write the report of one study or several; return the files written, the page first.

    `output` is the page's path; left out, it is report.html, in the study's folder if there is one study, else here.
    CSV and PNG files are named after it. `note` takes one line about what had to be left out.
    Raises `EnvironmentFault` for studies that cannot be reported and for files that cannot be written.
    """
    if len(directories) > MOST:
        raise EnvironmentFault(
            f"{counted(len(directories), 'study', 'studies')} are too many for one report; give at most {MOST}"
        )
    studies = [read_study(directory) for directory in dict.fromkeys(directories)]
    for study in studies:
        if not study.run.completed:
            note(f"{study.directory}: the run did not complete: {study.run.reason or 'its program was stopped'}; "
                 f"the report has its {counted(len(study.rounds), 'finished round')}")  # fmt: skip
    entries = _entries(studies)
    drawn = _figures(entries, note)
    path = output or (directories[0] / "report.html" if len(studies) == 1 else Path("report.html"))
    written = [_write(path, _page(entries, drawn))]
    if csv:
        written += write_csv(path, [(one.key.label, one.study, one.curve, one.costs) for one in entries])
    if png:
        written += write_png(path, drawn)
    return written


def labels(studies: Sequence[ReportStudy]) -> list[str]:
    """Return a distinct name for each study: method and link, the dataset where they differ, and whatever else sets
    them apart."""
    facts: list[Callable[[ReportStudy], str]] = [
        lambda study: counted(study.run.devices, "device"),
        lambda study: counted(study.run.rounds, "round"),
        lambda study: f"seed {study.run.seed}",
        lambda study: ", ".join(study.boards),
        lambda study: study.directory.name,
        lambda study: str(study.directory),
    ]
    names = [f"{study.run.method} · {study.link_name}" for study in studies]
    if len({study.run.dataset for study in studies}) > 1:  # accuracies on two datasets are not to be compared
        names = [f"{name} · {study.run.dataset}" for name, study in zip(names, studies, strict=True)]
    for fact in facts:
        told = [fact(study) for study in studies]
        if len(set(names)) < len(names) and len(set(told)) > 1:
            names = [f"{name} · {one}" for name, one in zip(names, told, strict=True)]
    return names


def _entries(studies: Sequence[ReportStudy]) -> list[Entry]:
    methods = [study.run.method for study in studies]
    colours = method_colours(methods)
    keys = [Key(label, colours[method], dash)
            for label, method, dash in zip(labels(studies), methods, dashes(methods), strict=True)]  # fmt: skip
    parts = [device_rounds(study) for study in studies]
    curves = [curve(study) for study in studies]
    peaks = [one.point.accuracy for points in curves for one in points if one.peak and one.point.accuracy is not None]
    aims = targets(peaks)
    return [
        Entry(study, key, found, points, costs(study, points, aims))
        for study, key, found, points in zip(studies, keys, parts, curves, strict=True)
    ]


def _figures(entries: Sequence[Entry], note: Callable[[str], None]) -> list[Figure]:
    """Return the figures for which there are data."""
    studies, legend = [one.study for one in entries], tuple(one.key for one in entries)
    drawn = []
    if any(one.point.accuracy is not None for entry in entries for one in entry.curve):
        drawn.append(figures.accuracy(studies, [one.curve for one in entries], legend))
    if any(study.traffic for study in studies):
        drawn.append(figures.bytes_by_part(studies, legend))
    drawn.append(figures.round_times(studies, legend))
    if any(entry.parts for entry in entries):
        drawn.append(timeline(studies, [one.parts for one in entries], [key.label for key in legend]))
    broadcasts, maps = {}, {}
    for one in entries:
        try:
            if found := latent.broadcasts(one.study):
                broadcasts[one.key.label] = found
                before = before_last_alignment(one.study.directory, one.study.run.devices)
                maps[one.key.label] = latent.latent_map(one.study, found[-1], before)
        except GcaError as error:
            here = str(one.study.directory)  # named once, whether or not the error names it, too
            note(f"{here}: no map of its codes: {str(error).replace(f'{here}: ', '').replace(f'{here}/', '')}")
    return drawn + ([centroids(broadcasts)] if broadcasts else []) + ([codes(maps)] if maps else [])


def _page(entries: Sequence[Entry], drawn: Sequence[Figure]) -> str:
    rows = [(one.key, one.study, one.costs) for one in entries]
    what = " and ".join(dict.fromkeys(one.study.data_name for one in entries))
    sections = [
        section("What it cost to get there", summary_table(rows), targets_table(rows)),
        *map(figure_section, drawn[:1]),
        section("What to know about these numbers", *_remarks(entries)),
        *map(figure_section, drawn[1:]),
        *([section("What a curious server could extract", attacks)] if (attacks := attacks_table(rows)) else []),
        section("How each study was made", paragraph(
            "The configuration as it was run, and where the figures of its link and its board come from."),
            *(details(one.key.label, one.study) for one in entries)),
    ]  # fmt: skip
    about = dict.fromkeys(facts(one.study) for one in entries)
    lead = next(iter(about)) if len(about) == 1 else counted(len(entries), "study", "studies")
    return page(f"Accuracy and its cost on {what}", lead, sections, drawn, f"gca {version('gca')}")


def _remarks(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the remarks on the studies, those that several have in common once."""
    of: dict[tuple[str, ...], list[str]] = {}
    for one in entries:
        of.setdefault(one.study.remarks, []).append(one.key.label)
    for remarks, names in of.items():
        heading = "<br>".join(map(escape, names))
        yield (f"<h3>{heading}</h3>\n" if len(entries) > 1 else "") + listing(remarks)


def _write(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror}; give a file that can be written as --output") from None
    return path
