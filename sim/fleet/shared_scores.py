"""Equal models of a fleet score the common test set once.

Where parameters are shared, all devices judge one and the same model after a broadcast. Each on its own board has to;
in one process the first one's scores serve the others, and evaluation takes half as long.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.hyperparameters import Hyperparameters
from edge_client.model.autoencoder import FloatArray
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import Trainer

RECENT = 4
"""Models remembered: the global one is judged by all devices within a short time."""


class SharedScores:
    """The scores of one test set by the models that were last judged on it; for all threads of a fleet."""

    def __init__(self, test: NDArray[np.floating[Any]] | None) -> None:
        self.test = test
        self._recent: deque[tuple[memoryview, Future[FloatArray]]] = deque(maxlen=RECENT)
        self._lock = Lock()

    def of(self, real: Trainer, parameters: FloatArray) -> FloatArray:
        """Return what `real.score` says of the test set, (M,) and read-only; wait for it where another thread asks."""
        model = memoryview(np.ascontiguousarray(parameters)).cast("B")  # compared to the bit
        with self._lock:
            scores = next((scores for known, scores in self._recent if known == model), None)
            if first := scores is None:
                scores = Future()
                self._recent.append((model, scores))
        if first:
            try:
                found = real.score(parameters, self.test)
            except BaseException as error:
                scores.set_exception(error)  # the others would have met it, too
                raise
            found.flags.writeable = False
            scores.set_result(found)
        return scores.result()


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


def scoring_together(test: NDArray[np.floating[Any]] | None) -> Callable[[Hyperparameters, int], Trainer]:
    """Return the choice of trainer for all devices of a fleet that are judged on `test`."""
    shared = SharedScores(test)
    return lambda hyper, width: ScoringTogether(trainer_for(hyper, width), shared)
