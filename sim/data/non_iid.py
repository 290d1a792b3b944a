"""Shares of unequal size and unlike content (paper, appendix "Non-IID Dirichlet setting").

1. Groups: the training normals fall into min(20, C) groups of like records, by mini-batch K-means on a descriptor.
2. Quotas: device sizes follow a long tail, a geometric series from the largest to a tenth of it; which device gets
   which size is drawn.
3. Preferences: each group draws its liking for each device from Dirichlet(0.1), and is handed out by it as far as
   the devices' quotas have room.

The paper names these three; how preferences and quotas meet is ours: the groups take turns, the largest first, and
what a full device cannot take goes to the others by the same preferences.
"""

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from edge_client.errors import ConfigError
from edge_client.seeds import digest, stream
from edge_client.words import counted

MOST_GROUPS = 20
CONCENTRATION = 0.1
"""The Dirichlet's alpha; towards zero each group would go to a single device."""
TAIL_RATIO = 10
"""The largest share over the smallest."""
POOLED = 8
"""Side of an image's descriptor."""

Counts = NDArray[np.int64]
Descriptors = NDArray[np.float32]


def non_iid(described: Descriptors, devices: int, seed: int, minimum: int) -> list[Counts]:
    """Return `devices` disjoint shares of the records described by `described` (N, d), as sorted indices.

    Every record is in one share, and each share has at least `minimum` records; ConfigError if N does not suffice.
    A pure function of its arguments, so that every method of a study trains on the same shares.
    """
    sizes = quotas(len(described), devices, minimum)
    sizes = stream(seed, "partition/quotas").permutation(sizes)
    groups = group(described, min(MOST_GROUPS, devices), seed)
    likes = stream(seed, "partition/preferences").dirichlet(np.full(devices, CONCENTRATION), groups.max() + 1)
    counts = hand_out(np.bincount(groups), likes, sizes)
    shares: list[list[Counts]] = [[] for _ in range(devices)]
    for number, row in enumerate(counts):
        members = stream(seed, f"partition/members/{number}").permutation(np.flatnonzero(groups == number))
        for share, part in zip(shares, np.split(members, np.cumsum(row)[:-1]), strict=True):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def group(described: Descriptors, components: int, seed: int) -> Counts:
    """Return the group of each record, shape (N,), numbered from 0 without gaps; at most `components` groups."""
    from sklearn.cluster import MiniBatchKMeans  # takes a second to import, and only these studies need it

    n = len(described)
    model = MiniBatchKMeans(
        min(components, n),
        n_init=10,
        max_iter=200,
        batch_size=min(2_048, n),
        random_state=digest(seed, "partition/groups", size=4),
    )
    with threadpool_limits(1):  # sums must not depend on how many cores this machine has
        labels = model.fit_predict(described)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def quotas(n: int, devices: int, minimum: int) -> Counts:
    """Return long-tail sizes, largest first, that sum to n; ConfigError if the smallest is below `minimum`.

    With three devices or more the largest is exactly ten times the smallest; the records that rounding leaves over
    go to the smallest of those between. Two devices are as near to ten to one as whole records allow.
    """
    if devices < 1:
        raise ConfigError(f"devices is {devices}; a partition needs at least 1")
    tail = TAIL_RATIO ** -np.linspace(0.0, 1.0, devices) if devices > 1 else np.ones(1)
    sizes: Counts = np.floor(n * tail / tail.sum() + 1e-9).astype(np.int64)  # 9.999... is ten
    smallest = int(sizes[-1])
    if smallest < max(minimum, 1):
        raise ConfigError(
            f"{counted(n, 'training record')} over {counted(devices, 'device')} with a tail of {TAIL_RATIO}:1 "
            f"leave a device with {smallest:,}, fewer than the minimum of {minimum:,}; use fewer devices, lower "
            'data.minimum_records, or set data.partition = "iid"'
        )
    if devices <= 2:
        sizes[0] += n - sizes.sum()
        return sizes
    sizes = np.minimum(sizes, TAIL_RATIO * smallest)
    between = sizes[1:-1]
    for _ in range(n - int(sizes.sum())):
        between[between.argmin()] += 1
    return sizes


def hand_out(groups: Counts, likes: NDArray[np.float64], sizes: Counts) -> Counts:
    """Return how many records of each group each device gets, shape (G, C).

    `groups` (G,) and `sizes` (C,) are the row and column sums of the result; `likes` (G, C) are the preferences.
    """
    room = sizes.copy()
    counts = np.zeros(likes.shape, np.int64)
    for number in np.argsort(-groups, kind="stable"):
        while need := int(groups[number] - counts[number].sum()):
            like = np.where(room > 0, likes[number], 0.0)
            if like.sum() == 0.0:  # all that this group likes is full
                like = room.astype(np.float64)
            taken = np.minimum(apportion(need, like), room)
            counts[number] += taken
            room -= taken
    return counts


def apportion(n: int, weights: NDArray[np.float64]) -> Counts:
    """Return whole numbers in proportion to `weights` that sum to n, by largest remainders; ties to the first."""
    exact = n * weights / weights.sum()
    whole: Counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(whole - exact, kind="stable")
    whole[by_remainder[: n - int(whole.sum())]] += 1
    return whole


def pooled(flat: Descriptors, image: tuple[int, int, int]) -> Descriptors:
    """Return images (N, channels * height * width) averaged down to 8 x 8 a channel, flattened again.

    Cell i covers the rows from floor(i h / 8) to ceil((i + 1) h / 8), so that cells of 28 rows overlap by half a row:
    adaptive average pooling.
    """
    channels, height, width = image
    cells = flat.reshape(-1, channels, height, width)
    rows, columns = _cells(height), _cells(width)
    averaged: Descriptors = np.einsum("ih,nchw,jw->ncij", rows, cells, columns, optimize=True)
    return averaged.reshape(len(flat), -1)


def _cells(length: int) -> NDArray[np.float32]:
    """Return the averaging matrix (8, length) of one axis."""
    matrix = np.zeros((POOLED, length), np.float32)
    for i in range(POOLED):
        start, stop = i * length // POOLED, -(-(i + 1) * length // POOLED)
        matrix[i, start:stop] = 1.0 / (stop - start)
    return matrix
