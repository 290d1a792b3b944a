"""Cholesky factors of covariances that may not be positive definite."""

import torch
from torch import Tensor


def robust_cholesky(covariances: Tensor, regularisation: float) -> tuple[Tensor, int]:
    """Return lower factors of (C, d, d) covariances, and how many of them had to be repaired.

    A covariance whose factor fails or is not finite gets a growing multiple of the identity, from `regularisation`
    up by tens; if none helps, its diagonal alone. Both the status and the values are looked at, because a failed
    factorisation leaves them in a state that differs between the CPU and CUDA.
    """
    factors, info = torch.linalg.cholesky_ex(covariances)
    bad = (info != 0) | ~torch.isfinite(factors).all(-1).all(-1)
    repaired = bad.nonzero()[:, 0].tolist()
    for index in repaired:
        factors[index] = _loaded_factor(covariances[index], regularisation)
    return factors, len(repaired)


def _loaded_factor(covariance: Tensor, regularisation: float) -> Tensor:
    """Return the factor of the covariance under the smallest load that makes it positive definite."""
    covariance = torch.nan_to_num(covariance, nan=0.0, posinf=1e150, neginf=-1e150)
    variances = covariance.diagonal().clamp(min=0.0)
    scale = float(variances.mean())
    least = max(regularisation, 1e-15 * scale, 1e-150)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    load = least
    while load <= max(scale, regularisation):
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(covariance + load * identity)
        if int(info) == 0 and bool(torch.isfinite(factor).all()):
            return factor
        load *= 10.0
    return torch.diag_embed((variances + least).sqrt())
