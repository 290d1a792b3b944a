"""`gca reproduce`: the paper's tables, published beside ours."""

import os
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import DataDir, Jobs


def reproduce(
    tables: Annotated[list[str], typer.Argument(help="table04 to table10, table13, table14, or all")],
    seeds: Annotated[str, typer.Option(help="seeds, the paper's are 100,200,300")] = "100,200,300",
    rounds: Annotated[int, typer.Option(help="rounds R, the paper's are 100")] = 100,
    datasets: Annotated[str, typer.Option(help="only these, such as academic,magic")] = "",
    rows: Annotated[str, typer.Option(help="only these rows of the tables, such as gca,fedavg")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="any key of every study, as training.optimizer=reset")
    ] = None,
    output: Annotated[Path, typer.Option(help="folder of the studies; what lies there is not run again")] = Path(
        "studies/reproduction"
    ),
    csv: Annotated[Path | None, typer.Option(help="folder for one CSV per table")] = None,
    jobs: Jobs = None,
    data_dir: DataDir = None,
) -> None:
    """Set the paper's tables beside ours.

    Runs what is missing and prints published, ours, the difference and a verdict.

    Examples:

      gca reproduce table06 --datasets academic

      gca reproduce table04 table14 --rounds 10 --seeds 100 --csv results
    """
    from rich.console import Console

    from sim.config.study import parse_override
    from sim.grid.runner import run_cells
    from sim.reproduction.pages import show, write_csv
    from sim.reproduction.published import names as tables_named
    from sim.reproduction.tables import Protocol, compare, wanted
    from sim.screen.words import names, whole_numbers

    protocol = Protocol(
        whole_numbers(seeds, "--seeds"), rounds, names(datasets), dict(parse_override(one) for one in set_ or ()),
        names(rows),
    )  # fmt: skip
    chosen = tables_named(tables)
    figures = wanted(chosen, protocol)
    console = Console()
    ends = run_cells(
        [cell for cells in figures.values() for cell in cells], output, jobs=jobs or os.cpu_count() or 1,
        data_dir=data_dir, tell=lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
    )  # fmt: skip
    if csv is not None:
        csv.mkdir(parents=True, exist_ok=True)
    for table in chosen:
        compared = [
            compare(figure, cells, ends, protocol.cut) for figure, cells in figures.items() if figure.table == table
        ]
        show(table, compared, console)
        if csv is not None:
            write_csv(csv / f"{table}.csv", compared)
    if any(end.failure for end in ends.values()):
        raise typer.Exit(1)
