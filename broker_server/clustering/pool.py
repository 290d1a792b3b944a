"""The robust front: from the devices' uploads to one finite, centred pool in an order of its own.

Whatever arrives, the algorithms behind see float64 rows near the origin. Order matters twice: the pool must not
depend on which device came first, so its rows are sorted by value; and the caller wants labels in upload order, so
the permutation is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ProtocolError
from edge_client.words import counted


@dataclass(frozen=True)
class Pool:
    """Kept codes of a round, centred by their median and sorted by value.

    `rows` (n, d) float64; `centre` (d,) the median that was subtracted; `order` (n,) the position of each row
    among the kept codes as uploaded; `groups` (n,) numbers the distinct rows from 0, ascending; `lower` and `upper`
    (d,) the box of the kept codes, uncentred; `kept` (N,) says which of all codes these are, `dropped` counts the
    others per device.
    """

    rows: NDArray[np.float64]
    centre: NDArray[np.float64]
    order: NDArray[np.int64]
    groups: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    kept: NDArray[np.bool_]
    dropped: tuple[int, ...]

    @property
    def radius(self) -> float:
        """Return the median distance from the centre: a scale that an outlier cannot inflate."""
        return float(np.median(np.sqrt(np.square(self.rows).sum(axis=1))))

    @property
    def distinct(self) -> int:
        """Return the number of distinct rows."""
        return int(self.groups[-1]) + 1


def pool_of(codes: Sequence[NDArray[np.floating]] | NDArray[np.floating], norm_bound: float) -> Pool:
    """Return the pool of `codes`: one (L_i, d) array per device, or a single array.

    Raises ProtocolError if the widths differ, an array is not a matrix of floats, or no usable row is left.
    """
    uploads = [codes] if isinstance(codes, np.ndarray) else list(codes)
    if not uploads:
        raise ProtocolError("clustering: no upload in this round; keep the previous centroids")
    width = _common_width(uploads)
    finite = [np.isfinite(upload).all(axis=1) for upload in uploads]
    rows = np.concatenate([u[keep].astype(np.float64) for u, keep in zip(uploads, finite, strict=True)])
    usable = np.concatenate(finite)
    if len(rows):
        # The median, unlike the mean, is not carried away by one row of 1e20.
        near = _distances_from_median(rows) <= norm_bound
        usable[usable] = near
        rows = rows if near.all() else rows[near]
    ends = np.cumsum([len(upload) for upload in uploads])[:-1]
    dropped = tuple(int((~part).sum()) for part in np.split(usable, ends))
    if not len(rows) or not width:
        raise ProtocolError(
            f"clustering: no usable code among {counted(len(usable), 'row')} from {counted(len(uploads), 'device')} "
            f"({sum(dropped)} not finite or beyond {norm_bound:g}); keep the previous centroids for this round"
        )
    rows += 0.0  # -0.0 becomes 0.0: one value to the sort and to the box
    lower, upper = rows.min(axis=0), rows.max(axis=0)
    centre = np.median(rows, axis=0)
    rows -= centre
    order = _lexical_order(rows)
    rows = rows[order]
    new = (rows[1:] != rows[:-1]).any(axis=1)
    groups = np.concatenate([[0], np.cumsum(new)]).astype(np.int64)
    return Pool(rows, centre, order, groups, lower, upper, usable, dropped)


def _common_width(uploads: Sequence[NDArray[np.floating]]) -> int:
    """Return the width all uploads share; raises ProtocolError naming the first device that differs."""
    width = -1
    for device, upload in enumerate(uploads):
        if not isinstance(upload, np.ndarray) or upload.ndim != 2 or upload.dtype.kind != "f":
            raise ProtocolError(f"clustering: upload {device} is not a matrix of floats; refuse this device's upload")
        width = upload.shape[1] if width < 0 else width
        if upload.shape[1] != width:
            raise ProtocolError(
                f"clustering: upload {device} has width {upload.shape[1]}, the others {width}; "
                "all devices must share the latent width"
            )
    return max(width, 0)


def _distances_from_median(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n,) Euclidean distances from the median row; infinite where float64 cannot hold them."""
    with np.errstate(over="ignore"):
        offsets = rows - np.median(rows, axis=0)
        squares: NDArray[np.float64] = np.square(offsets).sum(axis=1)
    return np.sqrt(squares)


def _lexical_order(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the permutation that sorts rows by their first dimension, ties by the next ones.

    Real latents rarely tie in the first dimension, so only the tied rows pay for the full sort.
    """
    order = np.argsort(rows[:, 0], kind="stable")
    lead = rows[order, 0]
    same = lead[1:] == lead[:-1]
    tied = np.concatenate([[False], same]) | np.concatenate([same, [False]])
    if tied.any():
        rest = order[tied]
        order[tied] = rest[np.lexsort(rows[rest].T[::-1])]
    return order
