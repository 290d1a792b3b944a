"""The component families of a mixture, each as a linear function of features of the code.

With phi(x) = (x_i x_j for i <= j, x, 1) the log-density of every component is one product phi(x) theta_k, and the
sums that the M-step needs are one product of the responsibilities with phi: two matrix products per iteration,
whatever the number of components and restarts. The price is cancellation for a component far from the origin
relative to its width; such a component (see `far`) is treated by differences instead.

Shapes: C components over all restarts, F features, B rows of a block, d dimensions.
"""

from dataclasses import dataclass
from math import log, pi
from typing import Protocol

import torch
from torch import Tensor

from broker_server.clustering.factorisation import robust_cholesky

FAR = 1e8
"""Squared distance from the origin in units of the width beyond which phi loses more than half of float64's digits."""

TINY = 10 * 2.0**-52
"""Added to the responsibilities of a component, so that an empty one has a mean; scikit-learn's value."""


@dataclass(frozen=True)
class Components:
    """`weights` (C,), `means` (C, d), and `whitening`: (C, d, d) lower-triangular W with W^T W the precision for
    full covariances, (C, d) inverse standard deviations for diagonal ones, (C, 1) for one shared width."""

    weights: Tensor
    means: Tensor
    whitening: Tensor

    def __getitem__(self, index: Tensor) -> "Components":
        """Return the components `index` selects."""
        return Components(self.weights[index], self.means[index], self.whitening[index])

    def replaced(self, index: Tensor, other: "Components") -> "Components":
        """Return these components with the ones at `index` taken from `other`."""
        result = Components(self.weights.clone(), self.means.clone(), self.whitening.clone())
        result.weights[index] = other.weights
        result.means[index] = other.means
        result.whitening[index] = other.whitening
        return result


class Family(Protocol):
    """What the EM loop asks of a kind of component."""

    repairs: int

    def features(self, rows: Tensor) -> Tensor:
        """Return phi of (B, d) rows: (B, F)."""
        ...

    def coefficients(self, components: Components, out: Tensor) -> None:
        """Write theta (C, F); theta phi(x) is the log of weight times density, up to a term common to all."""
        ...

    def far(self, components: Components) -> Tensor:
        """Return (C,) bool: components for which phi is not accurate."""
        ...

    def centred_logits(self, rows: Tensor, components: Components) -> Tensor:
        """Return the same as theta phi(x), (C, B), from differences to the means."""
        ...

    def centred_moments(self, rows: Tensor, responsibilities: Tensor, means: Tensor) -> Tensor:
        """Return (C, F) sums over the rows of responsibility times phi(x - mean of the component)."""
        ...

    def components(self, moments: Tensor, origins: Tensor | None, restarts: int) -> Components:
        """Return the maximum-likelihood components of moments (C, F) about `origins` (C, d), None for zeros."""
        ...


class Full:
    """One covariance matrix per component, plus `regularisation` on its diagonal."""

    def __init__(self, width: int, regularisation: float, device: torch.device) -> None:
        self.width = width
        self.regularisation = regularisation
        self.repairs = 0
        self.row, self.column = torch.triu_indices(width, width, device=device)
        self.pairs = len(self.row)
        # Position in the upper triangle of every entry of the matrix.
        self.position = torch.empty(width, width, dtype=torch.int64, device=device)
        self.position[self.row, self.column] = torch.arange(self.pairs, device=device)
        self.position[self.column, self.row] = torch.arange(self.pairs, device=device)

    def features(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[:, self.row] * rows[:, self.column], rows, rows.new_ones(len(rows), 1)], 1)

    def coefficients(self, components: Components, out: Tensor) -> None:
        precision = components.whitening.mT @ components.whitening
        linear = (precision @ components.means[..., None])[..., 0]
        out[:, : self.pairs] = precision[:, self.row, self.column] * torch.where(self.row == self.column, -0.5, -1.0)
        out[:, self.pairs : -1] = linear
        out[:, -1] = self._log_scale(components) - 0.5 * (linear * components.means).sum(1)

    def far(self, components: Components) -> Tensor:
        precision = components.whitening.square().sum(1)
        return (components.means.square() * precision).amax(1) > FAR

    def centred_logits(self, rows: Tensor, components: Components) -> Tensor:
        difference = rows[None] - components.means[:, None]
        return self._log_scale(components)[:, None] - 0.5 * (difference @ components.whitening.mT).square_().sum(2)

    def centred_moments(self, rows: Tensor, responsibilities: Tensor, means: Tensor) -> Tensor:
        difference = rows[None] - means[:, None]
        weighted = difference * responsibilities[..., None]
        square = (weighted.mT @ difference)[:, self.row, self.column]
        return torch.cat([square, weighted.sum(1), responsibilities.sum(1, keepdim=True)], 1)

    def components(self, moments: Tensor, origins: Tensor | None, restarts: int) -> Components:
        support, offset = _support_and_offset(moments, self.width)
        square = moments[:, : self.pairs][:, self.position.flatten()].view(-1, self.width, self.width)
        covariance = square / support[:, None, None] - offset[:, :, None] * offset[:, None, :]
        variance = covariance.diagonal(dim1=1, dim2=2)
        variance.clamp_(min=0.0).add_(self.regularisation)
        factors, repairs = robust_cholesky(covariance, self.regularisation)
        self.repairs += repairs
        identity = torch.eye(self.width, dtype=moments.dtype, device=moments.device)
        whitening = torch.linalg.solve_triangular(factors, identity.expand_as(factors), upper=False)
        return Components(_weights(support, restarts), _moved(origins, offset), whitening)

    def _log_scale(self, components: Components) -> Tensor:
        """Return (C,) log of the weight times the density at the mean."""
        diagonal = components.whitening.diagonal(dim1=1, dim2=2)
        return components.weights.log() + diagonal.log().sum(1) - 0.5 * self.width * log(2 * pi)


class Diagonal:
    """One variance per component and dimension, plus `regularisation`."""

    def __init__(self, width: int, regularisation: float) -> None:
        self.width = width
        # A variance of exactly zero would make the density infinite, whatever the settings ask.
        self.regularisation = max(regularisation, 1e-150)
        self.repairs = 0

    def features(self, rows: Tensor) -> Tensor:
        return torch.cat([rows.square(), rows, rows.new_ones(len(rows), 1)], 1)

    def coefficients(self, components: Components, out: Tensor) -> None:
        # With many restarts theta outgrows the cache, so it is written in place and few passes are made over it.
        square, linear = out[:, : self.width], out[:, self.width : -1]
        torch.mul(components.whitening, components.whitening, out=square)
        torch.mul(square, components.means, out=linear)
        square *= -0.5
        out[:, -1] = self._log_scale(components) - 0.5 * torch.linalg.vecdot(linear, components.means)

    def far(self, components: Components) -> Tensor:
        return (components.means * components.whitening).square_().amax(1) > FAR

    def centred_logits(self, rows: Tensor, components: Components) -> Tensor:
        scaled = (rows[None] - components.means[:, None]) * components.whitening[:, None]
        return self._log_scale(components)[:, None] - 0.5 * scaled.square_().sum(2)

    def centred_moments(self, rows: Tensor, responsibilities: Tensor, means: Tensor) -> Tensor:
        difference = rows[None] - means[:, None]
        weighted = difference * responsibilities[..., None]
        first, zeroth = weighted.sum(1), responsibilities.sum(1, keepdim=True)
        return torch.cat([weighted.mul_(difference).sum(1), first, zeroth], 1)

    def components(self, moments: Tensor, origins: Tensor | None, restarts: int) -> Components:
        support, offset = _support_and_offset(moments, self.width)
        variance = (moments[:, : self.width] / support[:, None]).addcmul_(offset, offset, value=-1.0)
        whitening = variance.clamp_(min=0.0).add_(self.regularisation).rsqrt_()
        return Components(_weights(support, restarts), _moved(origins, offset), whitening)

    def _log_scale(self, components: Components) -> Tensor:
        """Return (C,) log of the weight times the density at the mean."""
        return components.weights.log() + components.whitening.log().sum(1) - 0.5 * self.width * log(2 * pi)


def _support_and_offset(moments: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return (C,) responsibility sums and (C, d) mean minus origin."""
    support = moments[:, -1] + TINY
    return support, moments[:, -1 - width : -1] / support[:, None]


def _moved(origins: Tensor | None, offset: Tensor) -> Tensor:
    """Return origin plus offset."""
    return offset if origins is None else origins + offset


def _weights(support: Tensor, restarts: int) -> Tensor:
    """Return (C,) supports divided by their sum within each restart."""
    grouped = support.view(restarts, -1)
    return (grouped / grouped.sum(1, keepdim=True)).flatten()
