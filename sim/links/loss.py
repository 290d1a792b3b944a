"""The rate that random packet loss leaves to TCP.

Padhye, Firoiu, Towsley, Kurose, "Modeling TCP Throughput: A Simple Model and its Empirical Validation" (SIGCOMM 1998),
equation (32) without the receiver's window. Retransmitted bytes are not added to the wire: the model slows
a lossy link down, it does not count the copies.
"""

import math

from edge_client.transport.pacing import HEADER, MSS
from sim.links.link import MIN_RTO_VARIANCE


def loss_limited_rate(loss: float, rtt: float, segment: int = MSS + HEADER) -> float:
    """Return the bits/s that TCP reaches at most with loss probability `loss` per segment and round trip `rtt` seconds.

    Without loss or round trip there is no limit (inf). Every segment is acknowledged (b = 1), as Linux does while
    the window is small.
    """
    if loss == 0 or rtt == 0:
        return math.inf
    timeout = rtt + MIN_RTO_VARIANCE
    fast = rtt * math.sqrt(2 * loss / 3)
    slow = timeout * min(1.0, 3 * math.sqrt(3 * loss / 8)) * loss * (1 + 32 * loss**2)
    return segment * 8 / (fast + slow)
