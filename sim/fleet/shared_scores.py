"""Equal models of a fleet are judged on the common test set once, by all threads that ask.

Where parameters are shared, all devices judge one and the same model after a broadcast, at the same time. Each on its
own board has to. In one process whoever asks while the scores are made scores some records of those left, so that no
thread of a fleet waits for another one's work; who comes later finds scores and ranking made.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.hyperparameters import Hyperparameters
from edge_client.model import scoring
from edge_client.model.autoencoder import FloatArray
from edge_client.model.choice import trainer_for
from edge_client.model.scoring import Labels, Ranking
from edge_client.model.trainer import Trainer

RECENT = 4
"""Models remembered: the global one is judged by all devices within a short time."""
SHARE = 1000
"""Records, at least, that a thread scores before it looks whether there are more."""


class SharedScores:
    """What a fleet knows of the models that were last judged on its test set (M, d_x); for all its threads."""

    def __init__(self, test: NDArray[np.floating[Any]] | None) -> None:
        self.test = test
        self._recent: deque[_Judgement] = deque(maxlen=RECENT)
        self._lock = Lock()

    def of(self, real: Trainer, parameters: FloatArray) -> FloatArray:
        """Return what `real.score` says of the test set, (M,) and read-only."""
        assert self.test is not None
        model = np.ascontiguousarray(parameters).data.cast("B")  # compared to the bit
        with self._lock:
            judgement = next((known for known in self._recent if known.model == model), None)
            if judgement is None:
                judgement = _Judgement(model, self.test, real.block_rows)
                self._recent.append(judgement)
        judgement.help(lambda samples: real.score(parameters, samples))
        return judgement.scores.result()

    def ranking(self, scores: FloatArray, labels: Labels) -> Ranking:
        """Return `scoring.ranking`; of the test set's scores by one model, with one array of labels, made once."""
        with self._lock:
            judgement = next((known for known in self._recent if known.made(scores)), None)
        return scoring.ranking(scores, labels) if judgement is None else judgement.ranking(labels)


class _Judgement:
    """One model's scores while they are made and after, and their ranking."""

    def __init__(self, model: memoryview, test: FloatArray, block: int) -> None:
        self.model = model
        self.scores: Future[FloatArray] = Future()
        share = -(-SHARE // block) * block  # whole blocks: the bits are those of all records scored in one go
        self._left = deque(enumerate(test[start : start + share] for start in range(0, max(1, len(test)), share)))
        self._parts: list[FloatArray | None] = [None] * len(self._left)
        self._rankings: list[tuple[Labels, Future[Ranking]]] = []
        self._lock = Lock()

    def help(self, score: Callable[[FloatArray], FloatArray]) -> None:
        """Score records until none are left; the last to be done puts the parts together. An error is everybody's."""
        try:
            while (taken := self._next()) is not None:
                number, samples = taken
                found = score(samples)
                with self._lock:
                    self._parts[number] = found
                    parts = [part for part in self._parts if part is not None]
                if len(parts) == len(self._parts):
                    whole: FloatArray = np.concatenate(parts)
                    whole.flags.writeable = False
                    self.scores.set_result(whole)
        except BaseException as error:
            with self._lock:
                self._left.clear()
                if not self.scores.done():
                    self.scores.set_exception(error)
            raise

    def _next(self) -> tuple[int, FloatArray] | None:
        with self._lock:
            return self._left.popleft() if self._left else None

    def made(self, scores: FloatArray) -> bool:
        """Return whether these are its scores, and not others that are equal."""
        return self.scores.done() and self.scores.exception() is None and self.scores.result() is scores

    def ranking(self, labels: Labels) -> Ranking:
        """Rank its scores, unless another thread does so; labels are told apart by identity."""
        with self._lock:
            ranking = next((made for known, made in self._rankings if known is labels), None)
            if first := ranking is None:
                ranking = Future()
                self._rankings.append((labels, ranking))
        if first:
            try:
                ranking.set_result(scoring.ranking(self.scores.result(), labels))
            except BaseException as error:
                ranking.set_exception(error)
        return ranking.result()


class ScoringTogether:
    """A device's `Trainer`: the real one, except that test scores of equal models are shared."""

    def __init__(self, real: Trainer, shared: SharedScores) -> None:
        self._real, self._shared = real, shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        if samples is not self._shared.test:
            return self._real.score(parameters, samples)
        return self._shared.of(self._real, parameters)


def scoring_together(shared: SharedScores) -> Callable[[Hyperparameters, int], Trainer]:
    """Return the choice of trainer for all devices of a fleet that are judged on one test set."""
    return lambda hyper, width: ScoringTogether(trainer_for(hyper, width), shared)
