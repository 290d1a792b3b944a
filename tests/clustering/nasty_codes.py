"""Uploads a clustering must survive: valid float32 codes with every defect that has broken a library before."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.float32]


@dataclass(frozen=True)
class Upload:
    """Codes (n, d), the K asked for, and whether a diagonal covariance suits the width."""

    codes: Codes
    components: int
    wide: bool = False

    @property
    def usable(self) -> Codes:
        """Return the rows that are finite and within the default norm bound: what must be kept."""
        finite = self.codes[np.isfinite(self.codes).all(axis=1)]
        return finite[np.abs(finite).max(axis=1, initial=0.0) < 1e9]


def uploads() -> dict[str, Upload]:
    """Return every case by name; each draws from a generator of its own."""

    def gauss(case: int, rows: int = 390, width: int = 16) -> NDArray[np.float64]:
        return np.random.default_rng([7, case]).standard_normal((rows, width))

    def changed(case: int, row: object, value: float) -> NDArray[np.float64]:
        codes = gauss(case)
        codes[row] = value
        return codes

    scales = np.ones(16)
    scales[:2] = 1e6, 1e-6
    halves = np.where(np.arange(390) % 2, 1e4, 0.0)[:, None]
    repeated = gauss(5)
    repeated[:200] = repeated[0]
    nasty: dict[str, tuple[NDArray[np.float64], int]] = {
        "plain": (gauss(0), 10),
        "fewer_rows_than_dimensions_per_component": (gauss(1), 80),
        "half_the_dimensions_constant": (changed(2, np.s_[:, 8:], 0.0), 20),
        "first_dimensions_constant": (changed(3, np.s_[:, :8], 3.0), 20),
        "all_zero": (np.zeros((390, 16)), 10),
        "all_the_same": (np.full((390, 16), 100.3), 10),
        "half_the_rows_the_same": (repeated, 20),
        "twenty_distinct_rows": (np.tile(gauss(6, 20), (20, 1)) + 50, 80),
        "one_nan": (changed(7, (5, 3), np.nan), 10),
        "one_inf": (changed(8, (0, 0), -np.inf), 10),
        "mostly_nan": (changed(9, np.s_[:300, 2], np.nan), 10),
        "more_components_than_rows": (gauss(10, 50), 80),
        "as_many_components_as_rows": (gauss(11, 80), 80),
        "one_row": (gauss(12, 1), 1),
        "one_row_ten_components": (gauss(13, 1), 10),
        "two_rows_tied_with_zero": (np.array([[0.0] * 16, [-0.0] * 16]), 2),
        "one_dimension": (gauss(14, 390, 1), 5),
        "outlier_1e6": (changed(15, 7, 1e6), 10),
        "outlier_1e20": (changed(16, 7, 1e20), 10),
        "outlier_3e38": (changed(17, 7, 3e38), 10),
        "scales_1e6_and_1e-6": (gauss(18) * scales, 10),
        "offset_1e4": (gauss(19) + 1e4, 10),
        "offset_1e5_narrow": (gauss(20) * 1e-2 + 1e5, 10),
        "tiny_1e-20": (gauss(21) * 1e-20, 10),
        "denormal_1e-40": (gauss(22) * 1e-40, 10),
        "rank_3": (gauss(23, 390, 3) @ gauss(24, 3, 16), 20),
        "heavy_tails": (np.random.default_rng([7, 25]).standard_cauchy((390, 16)), 20),
        "two_needles": (gauss(26) * 1e-3 + halves, 10),
        "lattice_of_ties": (np.round(gauss(27)), 20),
    }
    cases = {name: Upload(codes.astype(np.float32), components) for name, (codes, components) in nasty.items()}
    wide = {"wide_500x1024": gauss(28, 500, 1024), "wide_far_300": gauss(29, 200, 256) * 0.1 + 300}
    return cases | {
        name: Upload(np.maximum(codes, 0).astype(np.float32), 20, wide=True) for name, codes in wide.items()
    }


def blobs(rows: int, width: int, centres: int, seed: int) -> NDArray[np.float64]:
    """Return overlapping Gaussian clusters with a common random covariance."""
    draws = np.random.default_rng([11, seed])
    means = 2.0 * draws.standard_normal((centres, width))
    shape = (
        draws.standard_normal((width, width)) / np.sqrt(width) if width < 100 else np.diag(draws.uniform(0.3, 1, width))
    )
    return means[draws.integers(centres, size=rows)] + draws.standard_normal((rows, width)) @ shape
