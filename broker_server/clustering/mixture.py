"""Expectation-maximisation for a mixture of any `Family`, all restarts at once.

Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 39(1), 1977. One
sweep over blocks of rows is the E-step of this iteration and the sums of its M-step, so the responsibilities are
never held for the whole pool. The order of steps and the stopping rule are scikit-learn's, so that iteration counts
can be compared: the likelihood of iteration t belongs to the parameters before its M-step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from broker_server.clustering.gaussians import Components, Family
from broker_server.clustering.problem import Fit, Problem, block_rows, blocks

FEATURE_CACHE_BYTES = 2**28
"""Features are kept for the whole pool up to this size, and computed anew for every block beyond it."""

CENTRED_VALUES = 2**21
"""Differences of rows to means held at once while far components are treated one by one."""

LEAST_SUPPORT = 0.5
"""A component that holds less than half a code is empty and not broadcast."""


@dataclass(frozen=True)
class Mixtures:
    """Fitted restarts: `components` (R * K, ...), `log_likelihood` (R,) mean per code, -inf where the restart
    failed; `iterations` (R,) and `converged` (R,)."""

    components: Components
    log_likelihood: Tensor
    iterations: Tensor
    converged: Tensor


class Sweep:
    """Passes over the rows for up to `columns` components; buffers are kept between passes."""

    def __init__(self, rows: Tensor, family: Family, columns: int) -> None:
        self.rows = rows
        self.family = family
        self.columns = columns
        self.width = family.features(rows[:1]).shape[1]
        self.logits = rows.new_empty(columns * block_rows(rows, columns + self.width))
        self.theta = rows.new_empty(columns, self.width)
        self.moments = rows.new_empty(columns, self.width)
        self.cache: Tensor | None = None
        if len(rows) * self.width * rows.element_size() <= FEATURE_CACHE_BYTES:
            self.cache = torch.cat([family.features(rows[block]) for block in self.blocks()])

    def blocks(self) -> Iterator[slice]:
        """Yield the row blocks of every pass."""
        return blocks(self.rows, self.columns + self.width)

    def features(self, block: slice) -> Tensor:
        """Return phi (B, F) of the rows in `block`."""
        return self.family.features(self.rows[block]) if self.cache is None else self.cache[block]

    def expect(self, components: Components, restarts: int, far: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield for each block its responsibilities (R * K, B) and log-likelihoods (R, B); `far` from `far_of`.

        The responsibilities live in a buffer that the next block overwrites.
        """
        theta = self.theta[: len(components.means)]
        self.family.coefficients(components, theta)
        for block in self.blocks():
            features = self.features(block)
            logits = self.logits[: len(theta) * len(features)].view(len(theta), len(features))
            torch.mm(theta, features.T, out=logits)
            for index, rows in self._far_parts(far, block):
                logits[index, rows.start - block.start : rows.stop - block.start] = self.family.centred_logits(
                    self.rows[rows], components[index]
                )
            grouped = logits.view(restarts, -1, len(features))
            largest = grouped.amax(1, keepdim=True)
            total = grouped.sub_(largest).exp_().sum(1, keepdim=True)
            grouped.div_(total)
            yield block, logits, (largest + total.log_())[:, 0]

    def far_of(self, components: Components) -> Tensor:
        """Return the indices of the components that are treated by differences."""
        return self.family.far(components).nonzero()[:, 0]

    def iterate(self, components: Components, restarts: int) -> tuple[Components, Tensor]:
        """Return the components after one EM iteration, and the mean log-likelihood (R,) before it."""
        far = self.far_of(components)
        likelihood = self.rows.new_zeros(restarts)

        def source() -> Iterator[tuple[slice, Tensor]]:
            for block, responsibilities, log_likelihood in self.expect(components, restarts, far):
                likelihood.add_(log_likelihood.sum(1))
                yield block, responsibilities

        updated = self._maximise(source(), restarts, far, components.means[far])
        return updated, likelihood / len(self.rows)

    def start(self, responsibilities: Tensor) -> Components:
        """Return the components of given (R, K, n) responsibilities, or of hard (R, n) integer labels."""

        def source() -> Iterator[tuple[slice, Tensor]]:
            for block in self.blocks():
                yield block, self._given(responsibilities, block)

        restarts = len(responsibilities)
        nowhere = torch.empty(0, dtype=torch.int64, device=self.rows.device)
        components = self._maximise(source(), restarts, nowhere, self.rows[:0])
        far = self.far_of(components)
        if not len(far):
            return components
        self.family.repairs = 0  # those so far belonged to components that are now replaced
        return self._maximise(source(), restarts, far, components.means[far])

    def _maximise(
        self, source: Iterator[tuple[slice, Tensor]], restarts: int, far: Tensor, means: Tensor
    ) -> Components:
        """Return the components of the responsibilities in `source`, those in `far` from sums about
        their `means` (len(far), d)."""
        far_moments = self.rows.new_zeros(len(far), self.width)
        for block, responsibilities in source:
            moments = self.moments[: len(responsibilities)]
            if block.start == 0:
                torch.mm(responsibilities, self.features(block), out=moments)
            else:
                moments.addmm_(responsibilities, self.features(block))
            for index, rows in self._far_parts(far, block):
                part = responsibilities[index, rows.start - block.start : rows.stop - block.start]
                position = torch.searchsorted(far, index)
                far_moments[position] += self.family.centred_moments(self.rows[rows], part, means[position])
        if not len(far):
            return self.family.components(moments, None, restarts)
        origins = self.rows.new_zeros(len(moments), self.rows.shape[1])
        moments[far] = far_moments
        origins[far] = means
        return self.family.components(moments, origins, restarts)

    def _given(self, responsibilities: Tensor, block: slice) -> Tensor:
        """Return (R * K, B) responsibilities of a block, hard labels as ones and zeros."""
        if responsibilities.dim() == 3:
            return responsibilities[:, :, block].flatten(0, 1)
        index = torch.arange(self.columns // len(responsibilities), device=self.rows.device)
        return (responsibilities[:, None, block] == index[:, None]).to(self.rows.dtype).flatten(0, 1)

    def _far_parts(self, far: Tensor, block: slice) -> Iterator[tuple[Tensor, slice]]:
        """Yield (component indices, row slice) pairs that cover `far` times `block` in bounded memory."""
        if not len(far):
            return
        width = self.rows.shape[1]
        group = max(1, min(len(far), CENTRED_VALUES // (64 * width)))
        step = max(1, CENTRED_VALUES // (group * width))
        for index in torch.split(far, group):
            for first in range(block.start, block.stop, step):
                yield index, slice(first, min(first + step, block.stop))


def fit(sweep: Sweep, start: Components, restarts: int, max_iterations: int, tolerance: float) -> Mixtures:
    """Iterate every restart until its mean log-likelihood changes by less than `tolerance`, or `max_iterations`.

    A restart that has converged leaves the batch. One whose likelihood is not a number keeps its start and is
    marked with -inf, so it cannot be chosen and does not disturb the others.
    """
    count = len(start.means) // restarts
    finished, current = start, start
    likelihood = torch.full((restarts,), -torch.inf, dtype=torch.float64)
    iterations = torch.zeros(restarts, dtype=torch.int64)
    converged = torch.zeros(restarts, dtype=torch.bool)
    active = torch.arange(restarts)
    for iteration in range(1, max_iterations + 1):
        updated, before = sweep.iterate(current, len(active))
        before = before.cpu()
        failed = ~torch.isfinite(before)
        settled = ((before - likelihood[active]).abs() < tolerance) & ~failed
        likelihood[active] = torch.where(failed, -torch.inf, before)
        iterations[active] = iteration
        converged[active[settled]] = True
        leaves = failed | settled if iteration < max_iterations else torch.ones_like(failed)
        if not bool(leaves.any()):
            current = updated
            continue
        fitted = leaves & ~failed
        finished = finished.replaced(
            _columns(active[fitted], count, sweep.rows), updated[_columns(fitted.nonzero()[:, 0], count, sweep.rows)]
        )
        current = updated[_columns((~leaves).nonzero()[:, 0], count, sweep.rows)]
        active = active[~leaves]
        if not len(active):
            break
    return Mixtures(finished, likelihood, iterations, converged)


def _columns(restarts: Tensor, count: int, like: Tensor) -> Tensor:
    """Return the indices of the `count` components of each of `restarts`, on the device of `like`."""
    return (restarts[:, None] * count + torch.arange(count)).flatten().to(like.device)


def best(problem: Problem, sweep: Sweep, mixtures: Mixtures, sparse: int) -> Fit:
    """Return the restart of largest likelihood, without its empty components.

    Their codes go to the others by one more E-step, so the supports sum to the rows. A component whose support is
    at most `sparse` counts as degenerate: its likelihood has no bound but the regularisation.
    """
    restarts = len(mixtures.log_likelihood)
    r = int(mixtures.log_likelihood.argmax())
    count = len(mixtures.components.means) // restarts
    components = mixtures.components[torch.arange(r * count, (r + 1) * count, device=problem.rows.device)]
    support, labels = _assigned(sweep, components)
    while bool((support < LEAST_SUPPORT).any()):
        components = components[support >= LEAST_SUPPORT]
        support, labels = _assigned(sweep, components)
    return Fit(
        components.means,
        support,
        labels,
        iterations=int(mixtures.iterations[r]),
        converged=bool(mixtures.converged[r]),
        log_likelihood=float(mixtures.log_likelihood[r]),
        degenerate_components=int((support <= sparse).sum()),
        repaired_factorisations=sweep.family.repairs,
        failed_restarts=int(torch.isinf(mixtures.log_likelihood).sum()),
    )


def _assigned(sweep: Sweep, components: Components) -> tuple[Tensor, Tensor]:
    """Return the support (K,) and the most responsible component (n,) of every row."""
    support = sweep.rows.new_zeros(len(components.means))
    labels = torch.empty(len(sweep.rows), dtype=torch.int64, device=sweep.rows.device)
    for block, responsibilities, _ in sweep.expect(components, 1, sweep.far_of(components)):
        support += responsibilities.sum(1)
        labels[block] = responsibilities.argmax(0)
    return support, labels
