"""Input optimisation through a reconstruction map (eq. 10 and 11; section "Symmetric attack protocol").

Minimises ||x - T(x)||^2 from many starts at once. The starts share the forward and backward passes and nothing else:
the objective is a sum of one term per start, and Adam works coordinate by coordinate, so each start has its own
moments; best point and stopping are kept per start. A start that has stopped leaves the batch.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.model.adam import BETA1, BETA2, EPSILON
from edge_client.words import counted
from sim.attack.networks import Halves
from sim.attack.seen import Floats
from sim.attack.starts import STEPS


@dataclass(frozen=True, slots=True)
class Search:
    """The optimiser's settings; defaults are the paper's.

    A step counts as progress if it lowers a start's best objective by more than the share `tolerance`; a start ends
    after `patience` steps in a row without. `bounds` is the box that points are projected to.
    """

    steps: int = STEPS
    learning_rate: float = 1e-2
    tolerance: float = 1e-3
    patience: int = 10
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.steps < 0 or self.patience < 1:
            raise ConfigError(
                f"attack: {counted(self.steps, 'step')} with patience {self.patience}; use 0 or more, and 1 or more"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Inversion:
    """What was found from S starts.

    outputs: T(x*), the attack's reconstructions (S, d_x). inputs: x*, each start's best point (S, d_x). residuals:
    ||x* - T(x*)||^2, shape (S,). steps: Adam steps that each start took, shape (S,).
    """

    outputs: Floats
    inputs: Floats
    residuals: Floats
    steps: NDArray[np.int64]


def invert(model: Halves, points: Floats, search: Search) -> Inversion:
    """Optimise every start in `points` (S, d_x) through the model's T and return what they ended in.

    Where T overflows, the objective counts as infinite: such a start keeps the best point it had.
    """
    T, starts = model.reconstruct, torch.tensor(points, device=model.device)
    count = len(starts)
    x, m, v = starts.clone(), torch.zeros_like(starts), torch.zeros_like(starts)
    best = starts.clone()
    residual = torch.full((count,), torch.inf, dtype=starts.dtype, device=starts.device)
    idle = torch.zeros(count, dtype=torch.int64, device=starts.device)
    taken = torch.zeros_like(idle)
    live = torch.arange(count, device=starts.device)

    for step in range(search.steps + 1):  # the last point is judged and not moved
        at = x[live].requires_grad_()
        objective = (at - T(at)).square().sum(dim=1)
        (gradient,) = torch.autograd.grad(objective.sum(), at)
        at, objective = at.detach(), objective.detach().nan_to_num(nan=torch.inf, posinf=torch.inf)

        before = residual[live]
        progress = objective < before * (1.0 - search.tolerance)
        idle[live] = torch.where(progress, 0, idle[live] + 1)
        better = objective < before
        best[live[better]] = at[better]
        residual[live] = torch.minimum(objective, before)

        going = idle[live] < search.patience
        live = live[going]
        if step == search.steps or len(live) == 0:
            break
        m[live] = BETA1 * m[live] + (1.0 - BETA1) * gradient[going]
        v[live] = BETA2 * v[live] + (1.0 - BETA2) * gradient[going].square()
        # All live starts are of one age, so one bias correction serves them all.
        age = step + 1
        correction1, root_correction2 = 1.0 - BETA1**age, sqrt(1.0 - BETA2**age)
        x[live] -= search.learning_rate / correction1 * m[live] / (v[live].sqrt() / root_correction2 + EPSILON)
        if search.bounds is not None:
            x[live] = x[live].clamp(*search.bounds)
        taken[live] = age

    with torch.no_grad():
        outputs = T(best)
    return Inversion(*(found.cpu().numpy() for found in (outputs, best, residual, taken)))
