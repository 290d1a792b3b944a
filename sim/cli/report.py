"""`gca report`: studies as one page with plots."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    studies: Annotated[list[Path], typer.Argument(help="folders of studies", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="the page (default: report.html, in the study's folder if it is one study)")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="also write the numbers beside it")] = False,
    png: Annotated[bool, typer.Option("--png", help="also write each figure beside it")] = False,
) -> None:
    """Put studies into one HTML page with plots.

    Accuracy against bytes, seconds, joules and rounds, where they went, and how each study was made. The page needs no
    network.

    Example: gca report studies/one studies/two --output comparison.html --csv
    """
    from sim.report.build import build_report

    for path in build_report(studies, output, csv=csv, png=png, note=lambda text: print(text, file=sys.stderr)):
        print(path)
