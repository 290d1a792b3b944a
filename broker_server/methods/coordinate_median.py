"""The coordinate-wise median in place of FedAvg's mean, the server half (Yin et al., ICML 2018, Definition 1).

Every coordinate of the aggregate is the median of the devices' values of it, in which each device has one vote,
whatever number of records it claims. As long as fewer than half of the devices lie, it stays within what the honest
ones sent; the price is that the models of small and of large shards weigh the same. In all else this is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from broker_server.methods.averaging import Vector, as_broadcast, coordinate_blocks
from broker_server.methods.base import Aggregate, Upload
from broker_server.methods.fedavg import FedAvgServer
from edge_client.protocol.codec import Arrays


@dataclass(frozen=True)
class CoordinateMedianServer(FedAvgServer):
    """Takes the median of the devices' models, coordinate by coordinate."""

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: Arrays | None = None) -> Aggregate:
        theta: Vector = np.concatenate([np.median(block, axis=0) for block in coordinate_blocks(uploads)])
        return Aggregate({"parameters": as_broadcast(theta)}, {"aggregation": "median"})
