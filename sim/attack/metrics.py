"""How much an attack's outputs resemble the victim's training records (appendix "Server-Side Extraction Results").

Both metrics compare with a bank H of normal records that no device trained on: what anybody could name who owns some
records of this kind. An attack whose outputs are such a bank has NTMSE 1 and excess cosine 0 against it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import GcaError
from sim.attack.seen import Floats

Doubles = NDArray[np.float64]

BLOCK_VALUES = 2**22
"""Numbers in one block of differences: 34 MB."""


@dataclass(frozen=True, slots=True)
class Leakage:
    """Higher `ntmse` and lower `excess_cosine` mean less leakage; both are over all training records of one victim."""

    ntmse: float
    excess_cosine: float


def leakage(targets: Floats, outputs: Floats, reference: Floats) -> Leakage:
    """Compare training records (N, d_x) with an attack's outputs (S, d_x) and the reference bank (H, d_x).

    NTMSE is the mean MSE of a record to its nearest output over the mean MSE to its nearest of the bank; excess
    cosine is the mean cosine similarity to those same outputs minus that to those same bank records. Ties go to the
    first. Raises GcaError when nothing can be compared: no outputs, or every target is itself in the bank.
    """
    if min(len(targets), len(outputs), len(reference)) == 0:
        raise GcaError("attack: nothing to compare; records, outputs and the reference bank must not be empty")
    near_output, near_reference = nearest(targets, outputs), nearest(targets, reference)
    baseline = float(squared_error(targets, reference[near_reference]).mean())
    if baseline == 0.0:
        raise GcaError("attack: every training record is in the reference bank too, so NTMSE is undefined")
    return Leakage(
        ntmse=float(squared_error(targets, outputs[near_output]).mean()) / baseline,
        excess_cosine=float(
            cosine(targets, outputs[near_output]).mean() - cosine(targets, reference[near_reference]).mean()
        ),
    )


@dataclass(frozen=True, slots=True)
class Paired:
    """What a guess made for each record is worth, beside the nearest of the bank.

    `ntmse`: the guesses' mean MSE over that of the bank; a few records far from all others decide it. `nearer`: the
    share of records to which the guess is the nearer one.
    """

    ntmse: float
    nearer: float


def paired(records: Floats, guesses: Floats, reference: Floats) -> Paired:
    """Compare records (M, d_x) with the guesses made for them, in their order, and with the reference bank (H, d_x).

    Not in the paper: for attacks that answer a code with a record. With an NTMSE below 1 or a share above one half, a
    code tells more about its record than a hundred strangers do.
    """
    errors, baseline = squared_error(records, guesses), squared_error(records, reference[nearest(records, reference)])
    if baseline.mean() == 0.0:
        raise GcaError("attack: every uploaded record is in the reference bank too, so paired NTMSE is undefined")
    return Paired(float(errors.mean() / baseline.mean()), float((errors < baseline).mean()))


def nearest(targets: Floats, bank: Floats) -> NDArray[np.intp]:
    """Return the index of the MSE-nearest row of `bank` (S, d) for each of `targets` (N, d), shape (N,).

    Differences are squared, not expanded: records that nearly coincide would cancel to noise.
    """
    found = np.empty(len(targets), np.intp)
    rows = max(1, BLOCK_VALUES // bank.size)
    for start in range(0, len(targets), rows):
        difference = targets[start : start + rows, None, :].astype(np.float64) - bank
        found[start : start + rows] = np.einsum("nsd,nsd->ns", difference, difference).argmin(axis=1)
    return found


def squared_error(a: Floats, b: Floats) -> Doubles:
    """Return the MSE over features of rows a (N, d) and b (N, d), shape (N,)."""
    errors: Doubles = np.square(a.astype(np.float64) - b).mean(axis=1)
    return errors


def cosine(a: Floats, b: Floats) -> Doubles:
    """Return the cosine similarity of rows a (N, d) and b (N, d), shape (N,); 0 where one of them is zero."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = np.einsum("nd,nd->n", a, b)
    similarities: Doubles = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return similarities
