"""From reconstruction errors to verdicts, and how good the verdicts are (eq. 6 and 7; paper, "Evaluation").

Labels are 1 for an anomaly and 0 for a normal record; a higher score is more anomalous.
"""

from typing import Any

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


def auroc(scores: FloatArray, labels: Labels) -> float:
    """Return the probability that an anomaly scores above a normal record, a tie counting one half.

    The Mann-Whitney statistic by mid-ranks. NaN when only one class is present, because nothing can be compared.
    """
    scores, anomalous = _checked(scores, labels)
    anomalies, normals = int(anomalous.sum()), int((~anomalous).sum())
    if anomalies == 0 or normals == 0:
        return float("nan")
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mid_ranks = np.cumsum(sizes) - (sizes - 1) / 2
    wins = float(mid_ranks[group][anomalous].sum()) - anomalies * (anomalies + 1) / 2
    return wins / (anomalies * normals)


def average_precision(scores: FloatArray, labels: Labels) -> float:
    """Return sum over thresholds n of (recall_n - recall_{n-1}) * precision_n, from the highest score down.

    Equal scores share one threshold; no interpolation. NaN when only one class is present: without anomalies recall
    is undefined, without normal records every ranking is perfect.
    """
    scores, anomalous = _checked(scores, labels)
    anomalies = int(anomalous.sum())
    if anomalies == 0 or anomalies == len(scores):
        return float("nan")
    _, group, sizes = np.unique(-scores, return_inverse=True, return_counts=True)
    hits = np.bincount(group, weights=anomalous, minlength=len(sizes))
    precision = np.cumsum(hits) / np.cumsum(sizes)
    return float(np.sum(hits / anomalies * precision))


def _checked(scores: FloatArray, labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return scores in float64 and labels as booleans; ConfigError unless they are two equal-length usable vectors."""
    if scores.ndim != 1 or len(scores) == 0 or scores.shape != labels.shape:
        raise ConfigError(f"scoring: needs one label per score, got shapes {scores.shape} and {labels.shape}")
    if np.isnan(scores).any():
        raise ConfigError("scoring: a score is NaN; use the trainer's score, which gives infinity on overflow")
    if not np.isin(labels, (0, 1)).all():
        raise ConfigError("scoring: labels must be 0 (normal) or 1 (anomaly)")
    return scores.astype(np.float64), labels.astype(np.bool_)
