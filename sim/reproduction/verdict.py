"""What to make of a published figure and ours: reproduced or not, and whether the order of methods is the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from edge_client.words import counted
from sim.reproduction.measures import Taken
from sim.reproduction.published import EXTRACTION, Figure

DEVIATIONS = 2.0
POINTS = 0.5
"""A mean within two published standard deviations, or of an accuracy half a percentage point, counts as reproduced."""


@dataclass(frozen=True)
class Compared:
    """A published figure beside ours. `taken` has one entry per seed that ran; `cut` says what was left out of the
    paper's protocol, and is empty where nothing was; `failure` why there is no figure of ours."""

    figure: Figure
    taken: Sequence[Taken]
    cut: str = ""
    failure: str = ""

    @property
    def mean(self) -> float | None:
        """Over seeds, in the figure's unit."""
        return mean(one.value for one in self.taken) if self.taken else None

    @property
    def std(self) -> float | None:
        """With n - 1 below; None for fewer than two seeds."""
        return stdev(one.value for one in self.taken) if len(self.taken) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus the published mean."""
        return None if self.mean is None else self.mean - self.figure.mean

    @property
    def verdict(self) -> str:
        """ "reproduced", "higher", "lower", or "no figure"."""
        if self.difference is None:
            return "no figure"
        points = 0.0 if self.figure.table in EXTRACTION else POINTS
        if abs(self.difference) <= max(DEVIATIONS * self.figure.std, points):
            return "reproduced"
        return "higher" if self.difference > 0 else "lower"


@dataclass(frozen=True)
class Order:
    """A published order between two rows of a table, by dataset: where it was claimed, and where ours agrees."""

    better: str
    worse: str
    claimed: tuple[str, ...]
    holds: tuple[str, ...]
    fails: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line for a person."""
        ran = len(self.holds) + len(self.fails)
        claim = f"{self.better} above {self.worse}: published for {counted(len(self.claimed), 'dataset')}"
        line = f"{claim}; holds in {len(self.holds)} of the {ran} that ran"
        return line + (f", not in {', '.join(self.fails)}" if self.fails else "")


def orders(compared: Sequence[Compared], reference: str) -> list[Order]:
    """Return the order claims of a table between the row `reference` and every other, in both directions."""
    labels = list(dict.fromkeys(one.figure.label for one in compared))
    cells = {(one.figure.dataset, one.figure.label): one for one in compared}
    datasets = list(dict.fromkeys(one.figure.dataset for one in compared))
    found = []
    for other in labels:
        if other == reference or reference not in labels:
            continue
        for better, worse in ((reference, other), (other, reference)):
            claimed = [d for d in datasets if _above(cells, d, better, worse, published=True)]
            if claimed:
                ran = [d for d in claimed if None not in (cells[d, better].mean, cells[d, worse].mean)]
                holds = tuple(d for d in ran if _above(cells, d, better, worse, published=False))
                fails = tuple(d for d in ran if d not in holds)
                found.append(Order(better, worse, tuple(claimed), holds, fails))
    return found


def _above(cells: dict[tuple[str, str], Compared], dataset: str, better: str, worse: str, *, published: bool) -> bool:
    one, other = cells.get((dataset, better)), cells.get((dataset, worse))
    if one is None or other is None:
        return False
    if published:
        return one.figure.mean > other.figure.mean
    return one.mean is not None and other.mean is not None and one.mean > other.mean
