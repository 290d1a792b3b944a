"""The points an attack starts from: noise of the scale of the records, the same for every method and victim.

The paper names random noise or public samples (section "DeepDream-style Model Inversion") and fixes neither. Noise is
taken here, because it gives the attacker nothing: N(0, 1) per feature for standardised tables, whose records have that
mean and variance, and the uniform distribution on the valid box for images.
"""

import numpy as np

from edge_client.seeds import stream
from sim.attack.seen import Floats, Shape

STARTS, STEPS = 100, 1000
"""The paper's: so many points, and so many steps of each at most."""


def starting_points(shape: Shape, seed: int, count: int = STARTS) -> Floats:
    """Return `count` starts, shape (count, d_x); a pure function of its arguments. More starts go on from fewer."""
    rng = stream(seed, "attack/starts")
    size = (count, shape.input_dim)
    if shape.bounds is None:
        return rng.standard_normal(size).astype(np.float32)
    return rng.uniform(*shape.bounds, size).astype(np.float32)
