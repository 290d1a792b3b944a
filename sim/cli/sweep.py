"""`gca sweep` and `gca compare`: many studies, one row for each, and what each had cost to reach an accuracy."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import Config, DataDir, Jobs, Rounds

Targets = Annotated[str, typer.Option(help="accuracies to be reached, as 0.6,0.65")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="any key of every study, as training.latent_dim=8")]
Output = Annotated[Path, typer.Option(help="folder of the studies; what lies there is not run again")]
Csv = Annotated[Path | None, typer.Option(help="write the rows to this CSV file")]


def sweep(
    config: Config,
    over: Annotated[list[str], typer.Option(help="a key and its values, as k=10,20 or link=nbiot-field,256kbit")],
    seeds: Annotated[str, typer.Option(help="seeds, as 100,200")] = "",
    targets: Targets = "",
    set_: Settings = None,
    output: Output = Path("studies/sweep"),
    csv: Csv = None,
    jobs: Jobs = None,
    data_dir: DataDir = None,
) -> None:
    """Run a grid of studies, one row per cell. Interrupted, it goes on where it was.

    Examples:

      gca sweep paper/academic --over k=10,20 --over link=nbiot-field,lte-m-hd-peak --seeds 100,200 --targets 0.6,0.64

      gca sweep paper/magic --over method=gca,fedavg --over participation=0.5,1.0 --set rounds=10 --csv rows.csv

      gca sweep demo --over link=nbiot-field,lte-m-hd-peak,wifi24-field --set compute=replay   (train once, time all)
    """
    from sim.grid.cells import parse_over
    from sim.screen.words import whole_numbers

    grid = parse_over(over)
    if seeds:
        grid["seed"] = whole_numbers(seeds, "--seeds")
    _run(config, set_, grid, targets, output, csv, jobs, data_dir)


def compare(
    config: Config,
    methods: Annotated[str, typer.Option(help="methods to compare")] = "gca,fedavg,fedprox,fednova,dp_fedavg,single",
    links: Annotated[str, typer.Option(help="links to compare them on, see `gca links`")] = "",
    rounds: Rounds = None,
    targets: Targets = "",
    set_: Settings = None,
    output: Output = Path("studies/compare"),
    csv: Csv = None,
    jobs: Jobs = None,
    data_dir: DataDir = None,
) -> None:
    """Compare what methods cost to reach an accuracy.

    All run on the same partition, devices and links.

    Examples:

      gca compare paper/academic --links nbiot-field,lte-m-hd-peak --rounds 20 --targets 0.6,0.64

      gca compare paper/magic --methods gca,fedavg --csv rows.csv
    """
    from sim.screen.words import names

    grid: dict[str, Sequence[object]] = {"method": names(methods)}
    if links:
        grid["link"] = names(links)
    settings = [*(set_ or ()), *([f"rounds={rounds}"] if rounds is not None else ())]
    _run(config, settings, grid, targets, output, csv, jobs, data_dir)


def _run(config: str, settings: Sequence[str] | None, grid: Mapping[str, Sequence[object]], targets: str, output: Path,
         csv: Path | None, jobs: int | None, data_dir: Path | None) -> None:  # fmt: skip
    from rich.console import Console

    from sim.config.study import parse_override
    from sim.grid.cells import cells
    from sim.grid.rows import check_writable, row, show, write_csv
    from sim.grid.runner import run_cells
    from sim.screen.words import shares

    console = Console()
    aims = shares(targets, "--targets")
    grid_cells = cells(
        config, {"isolation": "task", "clock": "virtual", **dict(map(parse_override, settings or ()))}, grid
    )
    if csv is not None:
        check_writable(csv)
    ends = run_cells(
        grid_cells, output, jobs=jobs or os.cpu_count() or 1, data_dir=data_dir,
        tell=lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
    )  # fmt: skip
    rows = [row(ends[cell.name], aims) for cell in grid_cells]
    show(rows, aims, console)
    if csv is not None:
        write_csv(csv, rows, aims)
    if any(one.failure for one in rows):
        raise typer.Exit(1)
