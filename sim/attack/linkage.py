"""Beyond the paper: can the server tell which codes of two rounds belong to one record?

It guesses that a code of the later upload belongs to the record of the nearest code of the earlier one; or of the one
that is most alike in what no rotation changes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from sim.attack.metrics import nearest
from sim.attack.seen import Floats


@dataclass(frozen=True, slots=True)
class Linkage:
    """Of the `common` records that both uploads hold, `linked` were guessed right; `chance` is one in the number of
    codes of the earlier upload."""

    common: int
    linked: int
    chance: float

    @property
    def rate(self) -> float:
        """Share of common records that were guessed right; NaN when there are none."""
        return self.linked / self.common if self.common else float("nan")


def link(earlier: Floats, earlier_rows: NDArray[np.int64], later: Floats, later_rows: NDArray[np.int64]) -> Linkage:
    """Judge the guesses for codes `earlier` (M, d) and `later` (M', d) of the records with these row numbers."""
    if len(earlier) == 0:
        raise ConfigError("linkage: the earlier upload holds no codes")
    common = np.isin(later_rows, earlier_rows)
    guessed = earlier_rows[nearest(later[common], earlier)]
    return Linkage(int(common.sum()), int((guessed == later_rows[common]).sum()), 1.0 / len(earlier))


def rotation_free(codes: Floats, centroids: Floats, count: int) -> Floats:
    """Return what is the same in any coordinates that are rotated alike: the length of each code (M, d_z), then its
    distances to the `count` nearest of the round's centroids (K, d_z) in rising order; shape (M, 1 + count).

    Distances are sorted because the order of centroids is that of a clustering, which may change.
    """
    difference = codes[:, None, :].astype(np.float64) - centroids
    distances = np.sort(np.linalg.norm(difference, axis=2), axis=1)[:, :count]
    return np.column_stack((np.linalg.norm(codes, axis=1), distances)).astype(np.float32)
