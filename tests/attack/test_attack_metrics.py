"""NTMSE, excess cosine and linkage against examples worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestNeighbors

from edge_client.errors import ConfigError, GcaError
from sim.attack.linkage import link, rotation_free
from sim.attack.metrics import cosine, leakage, nearest, paired

TARGETS = np.array([[1, 0], [0, 2], [-3, 4]], np.float32)
OUTPUTS = np.array([[1, 1], [-3, 0]], np.float32)
REFERENCE = np.array([[2, 0], [0, 4]], np.float32)

sixteenths = st.integers(-144, 144).map(lambda count: count / 16)  # a smaller unit must not lose them
banks = arrays(np.float32, st.tuples(st.integers(1, 6), st.just(3)), elements=sixteenths)


def test_three_records_by_hand() -> None:
    """Squared distances of the targets to the outputs (1, 1), (-3, 0) and to the references (2, 0), (0, 4):

    (1, 0):  to outputs 1 and 16; to references 1 and 17: nearest (1, 1) and (2, 0), MSE 1/2 and 1/2
    (0, 2):  2 and 13; 8 and 4: nearest (1, 1) and (0, 4), MSE 1 and 2
    (-3, 4): 25 and 16; 41 and 9: nearest (-3, 0) and (0, 4), MSE 8 and 9/2

    NTMSE = (1/2 + 1 + 8) / (1/2 + 2 + 9/2) = 9.5 / 7. Cosines to the same outputs: 1/sqrt 2, 1/sqrt 2, 9/15; to the
    same references: 1, 1, 16/20. Target (-3, 4) is more alike to (1, 1) neither by distance nor by angle.
    """
    found = leakage(TARGETS, OUTPUTS, REFERENCE)
    assert found.ntmse == pytest.approx(9.5 / 7)
    assert found.excess_cosine == pytest.approx((math.sqrt(2) + 0.6) / 3 - 2.8 / 3)


def test_the_cosine_is_that_of_the_nearest_output_not_the_most_alike() -> None:
    """(1, 0) is nearest to (1, 1), cosine 1/sqrt 2, though (50, 0) has cosine 1."""
    target, outputs = np.array([[1, 0]], np.float32), np.array([[50, 0], [1, 1]], np.float32)
    found = leakage(target, outputs, np.array([[0, 1]], np.float32))
    assert found.ntmse == pytest.approx(0.5 / 1.0)
    assert found.excess_cosine == pytest.approx(1 / math.sqrt(2) - 0)


@given(banks, banks)
def test_an_attack_that_outputs_the_reference_bank_has_ntmse_one_and_no_excess(
    targets: np.ndarray, bank: np.ndarray
) -> None:
    if all((bank == target).all(axis=1).any() for target in targets):
        with pytest.raises(GcaError, match="undefined"):
            leakage(targets, bank, bank)
    else:
        found = leakage(targets, bank, bank)
        assert (found.ntmse, found.excess_cosine) == (1.0, 0.0)


def test_an_attack_that_outputs_the_records_has_ntmse_zero_and_the_whole_excess() -> None:
    found = leakage(TARGETS, np.concatenate([OUTPUTS, TARGETS]), REFERENCE)
    assert found.ntmse == 0.0
    assert found.excess_cosine == pytest.approx(1 - 2.8 / 3)


@given(banks, banks, banks, st.sampled_from([0.25, 2.0, 8.0]))
def test_neither_metric_depends_on_the_unit_of_the_features(
    targets: np.ndarray, outputs: np.ndarray, reference: np.ndarray, unit: float
) -> None:
    try:
        plain = leakage(targets, outputs, reference)
    except GcaError:
        return
    scaled = leakage(targets * unit, outputs * unit, reference * unit)
    assert scaled.ntmse == pytest.approx(plain.ntmse, rel=1e-5, abs=1e-9)
    assert scaled.excess_cosine == pytest.approx(plain.excess_cosine, abs=1e-5)


def test_neighbours_and_cosines_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5000, 11)).astype(np.float32), rng.normal(size=(100, 11)).astype(np.float32)
    b[3] = 0
    neighbours = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(b.astype(np.float64))
    np.testing.assert_array_equal(nearest(a, b), neighbours.kneighbors(a.astype(np.float64))[1][:, 0])
    expected = np.diag(cosine_similarity(a[:100].astype(np.float64), b.astype(np.float64)))
    np.testing.assert_allclose(cosine(a[:100], b), expected, atol=1e-12)


def test_nothing_to_compare_is_an_error() -> None:
    for empty in range(3):
        given_ = [TARGETS, OUTPUTS, REFERENCE]
        given_[empty] = given_[empty][:0]
        with pytest.raises(GcaError, match="empty"):
            leakage(*given_)


def test_a_guess_for_each_record_by_hand() -> None:
    """MSE to the guesses: 0, (4 + 4) / 2 = 4 and 0; to the nearest references 1/2, 2 and 9/2."""
    guesses = np.array([[1, 0], [2, 4], [-3, 4]], np.float32)
    found = paired(TARGETS, guesses, REFERENCE)
    assert (found.ntmse, found.nearer) == (pytest.approx(4 / 7), 2 / 3)
    with pytest.raises(GcaError, match="undefined"):
        paired(TARGETS, guesses, TARGETS)


# ---- linkage ---------------------------------------------------------------------------------------------------------


def test_linkage_by_hand() -> None:
    """Records 5, 8, 9 in the earlier round at 0, 10, 20; records 9, 8, 2 in the later one at 18, 3, 0.

    18 is nearest to 20, which is record 9: linked. 3 is nearest to 0, which is record 5 and not 8. Record 2 was not
    in the earlier upload, so that it is no part of the question.
    """
    earlier, later = np.array([[0], [10], [20]], np.float32), np.array([[18], [3], [0]], np.float32)
    found = link(earlier, np.array([5, 8, 9]), later, np.array([9, 8, 2]))
    assert (found.common, found.linked, found.chance, found.rate) == (2, 1, 1 / 3, 0.5)


def test_uploads_without_a_common_record_link_nothing() -> None:
    codes = np.zeros((2, 3), np.float32)
    found = link(codes, np.array([1, 2]), codes, np.array([3, 4]))
    assert (found.common, found.linked) == (0, 0) and math.isnan(found.rate)
    with pytest.raises(ConfigError, match="no codes"):
        link(codes[:0], np.array([], np.int64), codes, np.array([3, 4]))


def test_lengths_and_distances_by_hand_and_in_any_rotation() -> None:
    """(3, 4) has length 5; (3, 0) is 4 and (0, 0) is 5 away from it."""
    codes, centroids = np.array([[3, 4], [0, 1]], np.float32), np.array([[0, 0], [3, 0]], np.float32)
    found = rotation_free(codes, centroids, 2)
    np.testing.assert_allclose(found, [[5, 4, 5], [1, 1, math.sqrt(10)]], rtol=1e-6)
    turn = np.array([[0, 1], [-1, 0]], np.float32)
    np.testing.assert_allclose(rotation_free(codes @ turn, centroids[::-1] @ turn, 2), found, rtol=1e-6)
    np.testing.assert_allclose(rotation_free(codes, centroids, 1), found[:, :2])
