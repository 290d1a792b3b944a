"""One-class tasks from labelled images: which class is normal, which is the anomaly, and their records.

The paper ties the pair to the seed (appendix "Architectures and optimization"): a seed stands for a task.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.seeds import stream
from sim.data.image_files import Images
from sim.data.image_sources import ImageSource

PUBLISHED_PAIRS = {100: (2, 8), 200: (0, 4), 300: (9, 5)}
"""(normal, anomaly) by seed."""


@dataclass(frozen=True, slots=True)
class ImageSplit:
    """Images as rows of [-1, 1]: `train` (N, d_x) normals, `test` (M, d_x), `labels` (M,) 1 = anomaly."""

    train: NDArray[np.float32]
    test: NDArray[np.float32]
    labels: NDArray[np.int8]
    pair: tuple[int, int]


def class_pair(seed: int) -> tuple[int, int]:
    """Return (normal, anomaly) of a seed: the paper's for its three seeds, else two of the ten classes at random."""
    if seed in PUBLISHED_PAIRS:
        return PUBLISHED_PAIRS[seed]
    normal, anomaly = stream(seed, "classes").permutation(10)[:2]
    return int(normal), int(anomaly)


def split(training: Images, test: Images, source: ImageSource, seed: int) -> ImageSplit:
    """Return the task of a seed: all training images of its normal class, all test images of both classes.

    Records keep the file's order. ConfigError when the source has no images of these classes.
    """
    normal, anomaly = class_pair(seed)
    if normal not in source.normals or anomaly not in source.tested:
        seeds = ", ".join(map(str, PUBLISHED_PAIRS))
        raise ConfigError(
            f"{source.title} has no images of seed {seed}'s classes, {normal} as normal and {anomaly} as anomaly; "
            f"use seed {seeds}, or the complete dataset"
        )
    rows = np.flatnonzero(np.isin(test.classes, (normal, anomaly)))
    return ImageSplit(
        train=_scaled(training.pixels(np.flatnonzero(training.classes == normal))),
        test=_scaled(test.pixels(rows)),
        labels=(test.classes[rows] == anomaly).astype(np.int8),
        pair=(normal, anomaly),
    )


def _scaled(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Map 0..255 to [-1, 1]."""
    return pixels.astype(np.float32) / np.float32(127.5) - np.float32(1.0)
