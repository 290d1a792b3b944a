"""Adam (Kingma and Ba, ICLR 2015, Algorithm 1) on flat vectors, in place.

With m and v the running means of g and g^2 after step t, and c1 = 1 - beta1^t, c2 = 1 - beta2^t:

    theta <- theta - alpha * (m / c1) / (sqrt(v / c2) + eps)
           = theta - (alpha * sqrt(c2) / c1) * m / (sqrt(v) + eps * sqrt(c2))

The second line is the first with the fraction extended by sqrt(c2), which saves one pass over the vector; eps keeps
its place after the corrected root, as in torch.optim.Adam. The corrections are computed in double: in float32,
1 - beta2^t loses most of its digits in the first steps.
"""

from math import sqrt

import numpy as np

from edge_client.model.autoencoder import FloatArray

BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8


def adam_step(
    parameters: FloatArray,
    first_moment: FloatArray,
    second_moment: FloatArray,
    gradient: FloatArray,
    scratch: FloatArray,
    *,
    step: int,
    learning_rate: float,
) -> None:
    """Move `parameters` and both moments by one step; `step` counts from 1. All vectors have one shape and dtype.

    `gradient` and `scratch` are overwritten.
    """
    correction1 = 1.0 - BETA1**step
    root_correction2 = sqrt(1.0 - BETA2**step)

    np.multiply(first_moment, BETA1, out=first_moment)
    np.multiply(gradient, 1.0 - BETA1, out=scratch)
    np.add(first_moment, scratch, out=first_moment)

    np.multiply(second_moment, BETA2, out=second_moment)
    np.multiply(gradient, gradient, out=gradient)
    np.multiply(gradient, 1.0 - BETA2, out=gradient)
    np.add(second_moment, gradient, out=second_moment)

    np.sqrt(second_moment, out=scratch)
    np.add(scratch, EPSILON * root_correction2, out=scratch)
    np.divide(first_moment, scratch, out=scratch)
    np.multiply(scratch, learning_rate * root_correction2 / correction1, out=scratch)
    np.subtract(parameters, scratch, out=parameters)
