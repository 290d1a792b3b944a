"""From a published table to its studies, and from their results to the comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_client.errors import ConfigError
from edge_client.words import counted
from sim.config.study import load_study
from sim.grid.cells import Cell
from sim.grid.runner import Done
from sim.reproduction.measures import take
from sim.reproduction.published import Figure, figures
from sim.reproduction.verdict import Compared

SEEDS = (100, 200, 300)
ROUNDS = 100
SETTING: Mapping[str, object] = {"evaluation.every": "epoch", "link": "none", "isolation": "task"}
"""The paper has no network, so nothing of a table depends on one; every method is judged at every instant."""


@dataclass(frozen=True)
class Protocol:
    """How much of the paper's protocol to run; `chosen` overrides keys of every study, and of the tables only these
    `datasets` and `rows` are wanted (none named: all)."""

    seeds: tuple[int, ...] = SEEDS
    rounds: int = ROUNDS
    datasets: tuple[str, ...] = ()
    chosen: Mapping[str, object] | None = None
    rows: tuple[str, ...] = ()

    @property
    def cut(self) -> str:
        """What was left out, in words; empty for the paper's protocol."""
        words = []
        if self.rounds != ROUNDS:
            words.append(f"{self.rounds} of {ROUNDS} rounds")
        if self.seeds != SEEDS:
            words.append(f"seeds {', '.join(map(str, self.seeds))} of {', '.join(map(str, SEEDS))}")
        words += [f"{key}={value}" for key, value in (self.chosen or {}).items()]
        return "; ".join(words)


def wanted(tables: Sequence[str], protocol: Protocol) -> dict[Figure, tuple[Cell, ...]]:
    """Return the figures of these tables, each with one cell per seed. Raises ConfigError for what is unknown."""
    published = [figure for table in tables for figure in figures(table)]
    for option, named, known in (
        ("--datasets", protocol.datasets, dict.fromkeys(figure.dataset for figure in published)),
        ("--rows", protocol.rows, dict.fromkeys(figure.label for figure in published)),
    ):
        for name in named:
            if name not in known:
                raise ConfigError(f"{option} {name}: not in {', '.join(tables)}; there are {', '.join(known)}")
    return {
        figure: tuple(_cell(figure, seed, protocol) for seed in protocol.seeds)
        for figure in published
        if (not protocol.datasets or figure.dataset in protocol.datasets)
        and (not protocol.rows or figure.label in protocol.rows)
    }


def compare(figure: Figure, cells: Sequence[Cell], ends: Mapping[str, Done], cut: str) -> Compared:
    """Return the published figure beside what the cells gave."""
    done = [ends[cell.name] for cell in cells]
    failures = [one.failure for one in done if one.failure]
    taken = [take(Path(one.directory), figure.measure) for one in done if not one.failure]
    if failures:
        cut = "; ".join(filter(None, (cut, f"{len(failures)} of {counted(len(done), 'seed')} failed")))
    return Compared(figure, taken, cut, failures[0] if failures else "")


def _cell(figure: Figure, seed: int, protocol: Protocol) -> Cell:
    keys = {**SETTING, **figure.overrides, "seed": seed, "rounds": protocol.rounds, **(protocol.chosen or {})}
    return Cell(load_study(f"paper/{figure.dataset}", keys), {"seed": seed, **figure.overrides})
