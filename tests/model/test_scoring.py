"""Threshold, accuracy and rankings against hand-worked cases and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from edge_client.errors import ConfigError
from edge_client.model.scoring import accuracy, ranking, threshold


@st.composite
def scored_labels(draw):
    """Scores from few distinct values, so that ties abound, with both classes present."""
    count = draw(st.integers(2, 60))
    scores = draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.7, 2.0, 1e6]), min_size=count, max_size=count))
    labels = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count).filter(lambda y: 0 < sum(y) < len(y)))
    return np.array(scores, np.float32), np.array(labels)


@settings(deadline=None)
@given(scored_labels())
def test_rankings_equal_scikit_learn(case):
    scores, labels = case
    auroc, average_precision = ranking(scores, labels)
    assert auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_rankings_of_many_continuous_scores_equal_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 13_000)
    scores = (rng.gamma(2, size=13_000) + 0.5 * labels).astype(np.float32)
    auroc, average_precision = ranking(scores, labels)
    assert auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_rankings_by_hand():
    """Normals score 1 and 2, anomalies 2 and 3.

    Pairs (anomaly, normal): 2>1, 2=2, 3>1, 3>2, so AUROC = 3.5/4. From the top: threshold 3 gives recall 1/2 at
    precision 1; threshold 2 gives recall 1 at precision 2/3; AP = 1/2 * 1 + 1/2 * 2/3 = 5/6.
    """
    scores, labels = np.array([1.0, 2.0, 2.0, 3.0]), np.array([0, 0, 1, 1])
    auroc, average_precision = ranking(scores, labels)
    assert auroc == 3.5 / 4
    assert average_precision == pytest.approx(5 / 6)


def test_infinite_scores_rank_at_the_top():
    scores, labels = np.array([1.0, 2.0, np.inf]), np.array([0, 0, 1])
    assert ranking(scores, labels) == (1.0, 1.0)
    assert accuracy(scores, labels, 2.0) == 1.0


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_no_ranking_but_an_accuracy(label):
    scores, labels = np.array([1.0, 2.0, 3.0]), np.full(3, label)
    assert np.isnan(ranking(scores, labels)).all()
    assert accuracy(scores, labels, 1.0) == pytest.approx([1 / 3, 2 / 3][label])


def test_threshold_interpolates_and_itself_counts_as_normal():
    """The 0.75-quantile of 0, 1, 2, 3 lies at position 2.25. Equality is normal (eq. 7)."""
    assert threshold(np.array([3, 1, 0, 2], np.float32), 0.75) == 2.25
    assert threshold(np.array([5.0]), 0.75) == 5.0
    assert accuracy(np.array([2.25, 2.26]), np.array([0, 1]), 2.25) == 1.0


def test_a_float32_score_is_compared_in_double():
    """0.1 in float32 is above 0.1 in double, so against tau = 0.1 it is an anomaly."""
    assert accuracy(np.array([0.1], np.float32), np.array([1]), 0.1) == 1.0


@pytest.mark.parametrize("quantile", [0.25, 0.75, 0.9])
def test_the_quantile_is_the_share_of_training_records_called_normal(quantile):
    scores = np.random.default_rng(1).permutation(1001).astype(np.float32)
    assert np.mean(scores <= threshold(scores, quantile)) == pytest.approx(quantile, abs=1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: threshold(np.array([]), 0.75),
        lambda: threshold(np.array([1.0, np.nan]), 0.75),
        lambda: threshold(np.array([1.0]), 1.0),
        lambda: accuracy(np.array([]), np.array([], np.int64), 1.0),
        lambda: accuracy(np.array([1.0]), np.array([0, 1]), 1.0),
        lambda: ranking(np.array([1.0, np.nan]), np.array([0, 1])),
        lambda: ranking(np.array([1.0, 2.0]), np.array([-1, 1])),
    ],
)
def test_unusable_input_is_a_typed_error(call):
    with pytest.raises(ConfigError):
        call()
