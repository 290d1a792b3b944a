"""The attack on GCA: a surrogate learned from the uploaded codes alone, then inverted (eq. 13 and 14).

The surrogate is a decoder-encoder pair turned round, z -> Dtilde -> x -> Etilde -> z, of the victim's widths. The
only input is `UploadedCodes`: no weights and no records can be reached from here.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from edge_client.model.autoencoder import FloatArray
from edge_client.seeds import stream
from sim.attack.inversion import Inversion, Search, invert
from sim.attack.networks import Halves, fresh_parameters, halves
from sim.attack.seen import Floats, UploadedCodes


@dataclass(frozen=True, slots=True)
class Fit:
    """How the surrogate is trained; defaults are the paper's (appendix "GCA latent-only attack")."""

    learning_rate: float = 1e-2
    batch_size: int = 50
    validation: float = 0.1
    epochs: int = 1000
    tolerance: float = 1e-4
    patience: int = 20


def attack(
    seen: UploadedCodes,
    starts: Floats,
    search: Search,
    seed: int,
    *,
    initial: FloatArray | None = None,
    fit: Fit = Fit(),
) -> Inversion:
    """Train a surrogate on the codes and search for fixed points of Ttilde = Dtilde o Etilde, from `starts` (S, d_x).

    `initial` (P,) is where the surrogate begins: None draws it, as the paper does; an attacker who knows the weights
    that the devices started from begins there.
    """
    if initial is None:
        initial = fresh_parameters(seen.shape, stream(seed, "attack/surrogate"))
    surrogate = halves(seen.shape, initial)
    learn_cycle(surrogate, torch.tensor(seen.codes, device=surrogate.device), stream(seed, "attack/fit"), fit)
    return invert(surrogate, starts, replace(search, bounds=seen.shape.bounds))


def learn_cycle(surrogate: Halves, codes: Tensor, rng: np.random.Generator, fit: Fit) -> float:
    """Minimise the mean of ||z - Etilde(Dtilde(z))||^2 (eq. 13) in place; return the best validation loss.

    A tenth of the `codes` (M, d_z), at least one, is set aside. Training ends when the loss on it has not come below
    its best by the share `tolerance` for `patience` epochs; the parameters of the best epoch are kept.
    """
    order = torch.tensor(rng.permutation(len(codes)), device=codes.device)
    held = max(1, round(fit.validation * len(codes)))
    validation, training = codes[order[:held]], codes[order[held:]]
    adam = torch.optim.Adam(surrogate.parameters, lr=fit.learning_rate)
    best, kept, idle = float("inf"), [p.detach().clone() for p in surrogate.parameters], 0
    for _ in range(fit.epochs):
        for batch in torch.split(torch.tensor(rng.permutation(len(training)), device=codes.device), fit.batch_size):
            gradients = torch.autograd.grad(cycle_loss(surrogate, training[batch]), surrogate.parameters)
            for parameter, gradient in zip(surrogate.parameters, gradients, strict=True):
                parameter.grad = gradient
            adam.step()
        with torch.no_grad():
            loss = float(cycle_loss(surrogate, validation))
        idle = 0 if loss < best * (1.0 - fit.tolerance) else idle + 1
        if loss < best:
            best, kept = loss, [p.detach().clone() for p in surrogate.parameters]
        if idle == fit.patience:
            break
    with torch.no_grad():
        for parameter, value in zip(surrogate.parameters, kept, strict=True):
            parameter.copy_(value)
    return best


def cycle_loss(surrogate: Halves, codes: Tensor) -> Tensor:
    """Mean over the batch of ||z - Etilde(Dtilde(z))||^2."""
    return (codes - surrogate.encode(surrogate.decode(codes))).square().sum(dim=1).mean()
