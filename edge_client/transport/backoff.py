"""How long to wait before the next try to connect: exponential, capped, jittered so that a fleet does not march."""

import numpy as np

FIRST_S, LONGEST_S = 0.5, 30.0


def delay(failures: int, jitter: np.random.Generator) -> float:
    """Return the seconds to wait after this many failures in a row (0 for the first)."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(failures, 16)) * (0.5 + float(jitter.random()))
