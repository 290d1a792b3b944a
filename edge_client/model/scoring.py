"""From reconstruction errors to verdicts, and how good the verdicts are (eq. 6 and 7; paper, "Evaluation").

Labels are 1 for an anomaly and 0 for a normal record; a higher score is more anomalous.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.errors import ConfigError
from edge_client.model.autoencoder import FloatArray

Labels = NDArray[np.integer[Any]] | NDArray[np.bool_]


def threshold(scores: FloatArray, quantile: float) -> float:
    """Return tau, the `quantile` of a device's own training scores (N,), linear between neighbours.

    Raises ConfigError when there are no scores or one of them is not finite: the model is broken, not the record.
    """
    if not 0.0 < quantile < 1.0:
        raise ConfigError(f"threshold_quantile: {quantile}; use a value between 0 and 1")
    if scores.ndim != 1 or len(scores) == 0 or not np.isfinite(scores).all():
        raise ConfigError(f"threshold: needs finite training scores of shape (N >= 1,), got shape {scores.shape}")
    return float(np.quantile(scores.astype(np.float64), quantile))


def accuracy(scores: FloatArray, labels: Labels, tau: float) -> float:
    """Return the share of records judged rightly when a record is normal iff s <= tau (eq. 7)."""
    scores, anomalous = _checked(scores, labels)
    return float(np.mean((scores > tau) == anomalous))


class Ranking(NamedTuple):
    """How well scores tell anomalies from normal records, whatever the threshold; NaN when one class is missing.

    `auroc` is the probability that an anomaly scores above a normal record, a tie counting one half (the
    Mann-Whitney statistic). `average_precision` is the sum over thresholds n, from the highest score down, of
    (recall_n - recall_{n-1}) * precision_n; equal scores share one threshold, and nothing is interpolated.
    """

    auroc: float
    average_precision: float


def ranking(scores: FloatArray, labels: Labels) -> Ranking:
    """Return both figures from one sort; counts are integers, so that only the last divisions round."""
    scores, anomalous = _checked(scores, labels)
    order = np.argsort(scores)[::-1]
    ranked = scores[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # of each group of equal scores
    anomalies = np.cumsum(anomalous[order])[last]  # at or above each threshold
    records = last + 1
    normals = records - anomalies
    if anomalies[-1] == 0 or normals[-1] == 0:
        return Ranking(float("nan"), float("nan"))
    hits, passed = np.diff(anomalies, prepend=0), np.diff(normals, prepend=0)
    twice_won = int(np.sum(passed * (2 * anomalies - hits)))  # each normal: 2 per anomaly above, 1 per equal one
    return Ranking(
        auroc=twice_won / (2 * int(anomalies[-1]) * int(normals[-1])),
        average_precision=float(np.sum(hits * (anomalies / records)) / anomalies[-1]),
    )


def _checked(scores: FloatArray, labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return scores in float64 and labels as booleans; ConfigError unless they are two equal-length usable vectors."""
    if scores.ndim != 1 or len(scores) == 0 or scores.shape != labels.shape:
        raise ConfigError(f"scoring: needs one label per score, got shapes {scores.shape} and {labels.shape}")
    if np.isnan(scores).any():
        raise ConfigError("scoring: a score is NaN; use the trainer's score, which gives infinity on overflow")
    if labels.dtype != np.bool_ and not ((labels == 0) | (labels == 1)).all():
        raise ConfigError("scoring: labels must be 0 (normal) or 1 (anomaly)")
    return scores.astype(np.float64), labels.astype(np.bool_, copy=False)
