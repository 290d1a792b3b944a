"""The coordinate-wise trimmed mean in place of FedAvg's, the server half (Yin et al., ICML 2018, Definition 2).

Of the C values of every coordinate the floor(`trim` C) smallest and as many of the largest are dropped, and the plain
mean of the others is taken: each device has one vote, whatever number of records it claims. While no more devices lie
than are dropped at one end, the aggregate stays within what the honest ones sent. In all else this is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

import numpy as np

from broker_server.methods.averaging import Vector, as_broadcast, coordinate_blocks
from broker_server.methods.base import Aggregate, Upload
from broker_server.methods.fedavg import FedAvgServer
from edge_client.protocol.codec import Arrays
from edge_client.words import counted


@dataclass(frozen=True)
class TrimmedMeanServer(FedAvgServer):
    """Averages what lies in the middle of the devices' models, coordinate by coordinate. `trim` is below 1/2."""

    trim: float = 0.1

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None = None) -> Aggregate:
        cut = floor(self.trim * len(uploads) + 1e-9)  # 0.1 of 10 is one
        theta: Vector = np.concatenate([_trimmed(block, cut) for block in coordinate_blocks(uploads)])
        told = () if cut else (f"{self.trim:g} of {counted(len(uploads), 'upload')} is none: nothing was trimmed",)
        return Aggregate({"parameters": as_broadcast(theta)}, {"aggregation": "trimmed_mean", "trimmed": cut}, told)


def _trimmed(block: Vector, cut: int) -> Vector:
    """Return the mean of each column (of C values) without its `cut` smallest and largest."""
    middle: Vector = np.sort(block, axis=0)[cut : len(block) - cut]
    mean: Vector = middle.mean(axis=0)
    return np.clip(mean, middle[0], middle[-1])  # rounding may put it outside by the last bit
