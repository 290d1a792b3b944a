"""A fleet's test scores: computed once for equal models, by all threads that come meanwhile, and never mistaken."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import Architecture, FloatArray
from edge_client.model.scoring import ranking
from edge_client.model.trainer import NumpyTrainer
from sim.fleet.shared_scores import RECENT, ScoringTogether, SharedScores, scoring_together

ARCH = Architecture(3, (4,), 2)
TEST = np.random.default_rng(1).standard_normal((9, 3)).astype(np.float32)


class Counting(NumpyTrainer):
    """Counts its scorings, which wait until they may go on."""

    def __init__(self) -> None:
        super().__init__(ARCH)
        object.__setattr__(self, "scored", [])
        object.__setattr__(self, "go", threading.Event())
        self.go.set()

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        self.scored.append(samples)
        assert self.go.wait(10)
        return super().score(parameters, samples)


def model(seed: int) -> FloatArray:
    return NumpyTrainer(ARCH).initial(np.random.default_rng(seed)).parameters


def test_equal_models_are_scored_once_and_right() -> None:
    real = Counting()
    device, other = (ScoringTogether(real, shared) for shared in [SharedScores(TEST)] * 2)
    first, second = device.score(model(1), TEST), other.score(model(1).copy(), TEST)
    assert len(real.scored) == 1
    np.testing.assert_array_equal(first, NumpyTrainer(ARCH).score(model(1), TEST))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="read-only"):
        second[0] = 0


def test_threads_that_come_meanwhile_wait_for_the_first() -> None:
    real = Counting()
    real.go.clear()
    device = ScoringTogether(real, SharedScores(TEST))
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(device.score, model(1).copy(), TEST) for _ in range(4)]
        done_early = [one.done() for one in asked]
        real.go.set()
        scores = [one.result(10) for one in asked]
    assert done_early == [False] * 4
    assert len(real.scored) == 1
    assert all(np.array_equal(one, scores[0]) for one in scores)


class Meeting(NumpyTrainer):
    """Scores its first share of the records only when somebody else is about to score one, too."""

    def __init__(self) -> None:
        super().__init__(ARCH)
        object.__setattr__(self, "scored", [])
        object.__setattr__(self, "both", threading.Barrier(2))

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        self.scored.append(samples)
        if not self.both.broken:
            self.both.wait(10)
        return super().score(parameters, samples)


def test_who_comes_meanwhile_scores_records_that_are_left() -> None:
    test = np.random.default_rng(2).standard_normal((2 * NumpyTrainer(ARCH).block_rows, 3)).astype(np.float32)
    real, shared = Meeting(), SharedScores(test)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ScoringTogether(real, shared).score, model(1), test) for _ in range(2)]
        first, second = (one.result(20) for one in asked)
    assert [len(samples) for samples in real.scored] == [len(test) / 2] * 2  # all of them, once, by two threads
    np.testing.assert_array_equal(first, NumpyTrainer(ARCH).score(model(1), test))
    assert second is first


def test_scores_are_ranked_once_for_each_array_of_labels() -> None:
    shared, labels = SharedScores(TEST), np.arange(len(TEST)) % 2
    scores = shared.of(NumpyTrainer(ARCH), model(1))
    assert shared.ranking(scores, labels) == ranking(scores, labels)
    assert shared.ranking(scores, labels) is shared.ranking(scores, labels)
    assert shared.ranking(scores, 1 - labels).auroc == pytest.approx(1 - ranking(scores, labels).auroc)
    assert shared.ranking(scores.copy(), labels) is not shared.ranking(scores, labels)  # not scores of the test set
    with pytest.raises(ConfigError):
        shared.ranking(scores, labels + 5)


def test_a_model_that_differs_in_one_bit_has_scores_of_its_own() -> None:
    real = Counting()
    device = ScoringTogether(real, SharedScores(TEST))
    near = model(1)
    near[-1] = np.nextafter(near[-1], np.float32(1))
    scores = [device.score(parameters, TEST) for parameters in (model(1), near)]
    assert len(real.scored) == 2
    assert not np.array_equal(*scores)


def test_what_is_not_the_common_test_set_goes_to_the_trainer() -> None:
    real = Counting()
    device = ScoringTogether(real, SharedScores(TEST))
    for _ in range(2):
        device.score(model(1), TEST.copy())  # equal, but a device's own records
    assert len(real.scored) == 2
    assert device.parameter_count == ARCH.parameters


def test_only_recent_models_are_remembered() -> None:
    real = Counting()
    device = ScoringTogether(real, SharedScores(TEST))
    for seed in (*range(RECENT + 1), 0):
        device.score(model(seed), TEST)
    assert len(real.scored) == RECENT + 2


def test_an_error_is_everybodys() -> None:
    device = scoring_together(SharedScores(TEST))(Hyperparameters(), 3)
    broken = np.zeros(7, np.float32)
    for _ in range(2):
        with pytest.raises(ConfigError):
            device.score(broken, TEST)
