"""A device judges its own model: threshold from its training scores, quality on its test set (eq. 6-7)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edge_client.data.records import Records
from edge_client.model import scoring
from edge_client.model.autoencoder import FloatArray
from edge_client.model.scoring import Labels, Ranking
from edge_client.model.trainer import ModelState, Trainer
from edge_client.protocol.messages import Evaluation, Phase

Instants = Literal["epoch", "phase", "round", "never"]
"""When a device judges its model: after every local epoch and every model taken over, at the end of every local phase
and after every model taken over, with the model that a round ends with, or never."""


@dataclass(frozen=True)
class Evaluator:
    """`quantile` is p of tau_i, the p-quantile of the device's training scores; `ranking` ranks test scores."""

    records: Records
    trainer: Trainer
    quantile: float
    ranking: Callable[[FloatArray, Labels], Ranking] = scoring.ranking

    def evaluate(self, phase: Phase, epoch: int, state: ModelState, loss: float) -> Evaluation:
        """Return the evaluation of a model; without a test set its qualities are NaN."""
        tau = scoring.threshold(self.trainer.score(state.parameters, self.records.samples), self.quantile)
        accuracy = auroc = average_precision = math.nan
        if self.records.test is not None and self.records.labels is not None:
            scores, labels = self.trainer.score(state.parameters, self.records.test), self.records.labels
            accuracy = scoring.accuracy(scores, labels, tau)
            auroc, average_precision = self.ranking(scores, labels)
        return Evaluation(phase=phase, epoch=epoch, loss=loss, threshold=tau, accuracy=accuracy, auroc=auroc,
                          average_precision=average_precision)  # fmt: skip
