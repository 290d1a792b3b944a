"""Scores of whole blocks of records are the bits of all records scored in one go: threads may share a test set."""

import numpy as np
import pytest

from edge_client.kernel import library
from edge_client.model.autoencoder import Architecture
from edge_client.model.compiled import CompiledTrainer
from edge_client.model.convolutional import ConvolutionalArchitecture
from edge_client.model.convolutional_trainer import ConvolutionalTrainer
from edge_client.model.trainer import NumpyTrainer, Trainer

DENSE = Architecture(5)
TRAINERS: dict[str, Trainer] = {
    "numpy": NumpyTrainer(DENSE),
    "convolutional": ConvolutionalTrainer(ConvolutionalArchitecture((1, 12, 12), (8, 8), 9)),
    **{path: CompiledTrainer(DENSE, path) for path in library.paths()},
}


@pytest.mark.parametrize("name", TRAINERS)
def test_blocks_score_alone_as_among_all(name: str) -> None:
    trainer = TRAINERS[name]
    rng = np.random.default_rng(4)
    width = 5 if name != "convolutional" else 144
    parameters = trainer.initial(rng).parameters
    samples = rng.standard_normal((3 * trainer.block_rows + 7, width)).astype(np.float32)
    blocks = [samples[start : start + trainer.block_rows] for start in range(0, len(samples), trainer.block_rows)]
    alone = np.concatenate([trainer.score(parameters, block) for block in reversed(blocks)][::-1])
    np.testing.assert_array_equal(alone, trainer.score(parameters, samples))
