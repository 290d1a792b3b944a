"""What clipped and noised codes are worth, in the terms of differential privacy.

Two questions with very different answers, both for one device, all rounds, and two data sets that differ in one of its
records (replaced by another):

- *The whole upload.* The encoder was trained on the record, so that it may move all u codes of a round anywhere within
  the clip: L2 sensitivity 2 c sqrt(u). This is a guarantee about records. Rounds are adaptive Gaussian releases, which
  together are as good as one with mu = sensitivity * sqrt(R) / sigma (Dong, Roth and Su 2022, Corollary 3.3), so that
  epsilon is exact.
- *The encoder taken as fixed*, which it is not. Then a record moves its own code alone, by 2 c at most. This is no
  guarantee about records, and is told because many systems state it. A record drawn in every round is what the law
  above says with 2 c sqrt(R); that the server does not know in which rounds it is drawn (`Secrets.seed`) may bring
  less, which the package dp-accounting tells. Both are bounds, and the smaller holds.

Noise is drawn anew for each run and device (`Secrets.of_run`), so that no two uploads share it. What is told is of one
run: R further rounds on the same records in a second run count like R more in the first.

All of it is about the ideal mechanism: noise here comes from a generator that is not cryptographic, in floating point.
And it is about uploads alone: the telemetry of a device, with its losses, thresholds and a hash of its model, is made
from the same records. How many records a device has, and the means and deviations that features are standardised
by, are taken as public.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erfc, exp, log, pi, sqrt

from edge_client.errors import EnvironmentFault, pip_install
from edge_client.methods.defences import in_words
from edge_client.methods.gca import upload_size
from edge_client.words import counted
from sim.config.study import Study

DELTA = 1e-5
TARGET_EPSILON = 8.0
"""What is commonly called a weak guarantee; the noise that it would take is told beside what was chosen."""


@dataclass(frozen=True)
class Released:
    """What one device gives away: `codes` of its `records` in each of `rounds`, with noise of `noise` times the clip
    on each number."""

    records: int
    codes: int
    rounds: int
    noise: float


def remarks(study: Study, most_records: int) -> list[str]:
    """Say what is done to codes, and what it is worth for the device with most records; nothing if nothing is done."""
    chosen = study.training
    lines = [f"codes are {done}"] if (done := in_words(chosen)) else []
    if chosen.code_rotation:
        lines.append("a rotation has no (epsilon, delta); emulated devices draw their secret from the study's seed")
    if not chosen.code_noise:
        return lines
    codes = upload_size(chosen.upload_fraction, most_records)
    released = Released(most_records, codes, study.rounds, chosen.code_noise)
    needed = 2.0 * sqrt(codes * study.rounds) / mu_of_epsilon(TARGET_EPSILON, DELTA)
    lines.append(
        f"uploads alone, one record of {most_records:,}, {counted(codes, 'code')} a round, "
        f"{counted(study.rounds, 'round')}: epsilon {epsilon_of_upload(released, DELTA):.4g} at delta "
        f"{DELTA:g}; epsilon {TARGET_EPSILON:g} would take training.code_noise={needed:.3g}"
    )
    fixed, untold = epsilon_if_always_drawn(released, DELTA), ""
    try:
        fixed = min(fixed, epsilon_if_drawn_in_secret(released, DELTA))
    except EnvironmentFault as error:
        untold = f" with the record drawn in every round; for fewer, {error}"
    lines.append(
        f"no guarantee, as it takes the encoder as fixed, which is trained on the record: epsilon {fixed:.4g}{untold}"
    )
    return lines


def epsilon_of_upload(released: Released, delta: float) -> float:
    """Return the epsilon at `delta` of all uploads of a device, for one of its records."""
    return epsilon_of_gaussian(2.0 * sqrt(released.codes * released.rounds) / released.noise, delta)


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """Return the least epsilon at `delta` of Gaussian releases of sensitivity / sigma = mu together."""
    low, high = 0.0, mu * mu / 2.0 + mu * sqrt(2.0 * log(1.0 / delta))  # enough by the Renyi divergence
    return _bisect(lambda epsilon: delta_of_gaussian(epsilon, mu) <= delta, low, high)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest mu = sensitivity / sigma for which one Gaussian release is (epsilon, delta)-DP."""
    return 1.0 / _bisect(lambda inverse: delta_of_gaussian(epsilon, 1.0 / inverse) <= delta, 1e-9, 1e9)


def delta_of_gaussian(epsilon: float, mu: float) -> float:
    """Return the least delta of a Gaussian release: Phi(a) - e^epsilon Phi(-x), a = mu/2 - epsilon/mu, x = mu/2 +
    epsilon/mu (Dong, Roth and Su 2022, Corollary 2.13).

    As e^epsilon phi(x) = phi(a), the second term is phi(a) times Mills' ratio of x, which does not overflow.
    """
    a, x = mu / 2.0 - epsilon / mu, mu / 2.0 + epsilon / mu
    return erfc(-a / sqrt(2.0)) / 2.0 - exp(-a * a / 2.0) / sqrt(2.0 * pi) * mills_ratio(x)


def mills_ratio(x: float) -> float:
    """Return (1 - Phi(x)) / phi(x) for x >= 0; beyond 5 by its continued fraction 1/(x + 1/(x + 2/(x + ...)))."""
    if x < 5.0:
        return erfc(x / sqrt(2.0)) / 2.0 * sqrt(2.0 * pi) * exp(x * x / 2.0)
    tail = x
    for k in range(60, 0, -1):
        tail = x + k / tail
    return 1.0 / tail


def epsilon_if_always_drawn(released: Released, delta: float) -> float:
    """Return the epsilon at `delta` with the encoder taken as fixed, of a record that is drawn in every round."""
    return epsilon_of_gaussian(2.0 * sqrt(released.rounds) / released.noise, delta)


def epsilon_if_drawn_in_secret(released: Released, delta: float) -> float:
    """Return the epsilon at `delta` with the encoder taken as fixed, by Renyi accounting of sampling without
    replacement; raises `EnvironmentFault` where the package dp-accounting is missing.

    A bound, and not always a good one: with half of the records drawn it may lie above that of no sampling.
    """
    try:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ModuleNotFoundError:
        raise EnvironmentFault(f"install the package dp-accounting: {pip_install('privacy')}") from None
    gaussian = dp_accounting.GaussianDpEvent(released.noise / 2.0)  # in units of the sensitivity, 2 c
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(released.records, released.codes, gaussian)
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, released.rounds))
    return float(accountant.get_epsilon(delta))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least value in [low, high] from which on `holds`, which it does at `high`."""
    while high - low > max(1e-9 * high, 1e-12):
        middle = sqrt(low * high) if low > 0.0 else high / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
