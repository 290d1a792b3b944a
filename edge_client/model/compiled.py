"""The trainer that runs a device's whole local phase in one call of the compiled kernel, other threads beside it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.kernel import library
from edge_client.model import checks
from edge_client.model.autoencoder import FloatArray
from edge_client.model.trainer import DenseTrainer, ModelState


@dataclass(frozen=True, slots=True)
class CompiledTrainer(DenseTrainer):
    """See `Trainer`; float32 only. `path` is one of `library.paths()`: on one path, equal arguments give equal bits."""

    path: str

    def __post_init__(self) -> None:
        checks.check_kernel_path(self.path, library.paths())
        checks.check_kernel_model(self.parameter_count, len(self.architecture.widths) - 1)

    def reconstruct(
        self,
        state: ModelState,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        *,
        batch_size: int,
        learning_rates: NDArray[np.float64],
        proximal: tuple[float, FloatArray] | None = None,
    ) -> tuple[ModelState, NDArray[np.float64]]:
        self._check_training(state, samples, orders, learning_rates, batch_size)
        mu, anchor = 0.0, None
        if proximal is not None:
            mu, anchor = proximal
            checks.check_parameters(anchor, self.parameter_count)
            anchor = np.ascontiguousarray(anchor, np.float32)
        job = library.Training(objective=library.RECONSTRUCTION, anchor=_address(anchor), mu=mu)
        return self._train("reconstruction", job, state, samples, orders, learning_rates, batch_size)

    def align(
        self,
        state: ModelState,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        *,
        centroids: FloatArray,
        weights: FloatArray,
        batch_size: int,
        learning_rates: NDArray[np.float64],
    ) -> tuple[ModelState, NDArray[np.float64]]:
        self._check_training(state, samples, orders, learning_rates, batch_size)
        checks.check_centroids(centroids, self.latent_dim)
        checks.check_per_centroid(weights, len(centroids), "weights")
        centroids, weights = (np.ascontiguousarray(a, np.float32) for a in (centroids, weights))
        job = library.Training(
            objective=library.ALIGNMENT,
            centroids=_address(centroids),
            weights=_address(weights),
            components=len(centroids),
        )
        return self._train("alignment", job, state, samples, orders, learning_rates, batch_size)

    def encode(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        codes = np.empty((len(samples), self.latent_dim), np.float32)
        self._infer(library.Inference(codes=_address(codes)), parameters, samples)
        return codes

    @property
    def block_rows(self) -> int:
        return library.BLOCK_ROWS

    def score(self, parameters: FloatArray, samples: FloatArray) -> FloatArray:
        scores = np.empty(len(samples), np.float32)
        self._infer(library.Inference(scores=_address(scores)), parameters, samples)
        return scores

    def _train(
        self,
        phase: str,
        job: library.Training,
        state: ModelState,
        samples: FloatArray,
        orders: NDArray[np.integer[Any]],
        learning_rates: NDArray[np.float64],
        batch_size: int,
    ) -> tuple[ModelState, NDArray[np.float64]]:
        """Fill in what both objectives share, run the job on a copy of the state, and return it with the losses."""
        epochs, records = orders.shape
        checks.check_kernel_batch(min(batch_size, records), self.architecture.widths)
        vectors = [np.array(v, order="C") for v in (state.parameters, state.first_moment, state.second_moment)]
        inputs = [
            np.ascontiguousarray(samples),
            np.ascontiguousarray(orders, np.int64),
            np.ascontiguousarray(learning_rates, np.float64),
        ]
        losses = np.empty(epochs)
        widths = np.array(self.architecture.widths)
        job.model = self._model(widths)
        job.parameters, job.first_moment, job.second_moment = map(_address, vectors)
        job.samples, job.orders, job.learning_rates = map(_address, inputs)
        job.losses = _address(losses)
        job.epochs, job.records, job.batch_size = epochs, records, batch_size
        job.encoder_steps, job.decoder_steps = state.encoder_steps, state.decoder_steps
        library.train(job, self.path)
        losses /= records
        checks.check_still_finite(phase, vectors[0], losses)
        steps = epochs * -(-records // batch_size)
        parameters, first_moment, second_moment = vectors
        return ModelState(
            parameters,
            first_moment,
            second_moment,
            encoder_steps=state.encoder_steps + steps,
            decoder_steps=state.decoder_steps + (0 if phase == "alignment" else steps),
            epochs=state.epochs + epochs,
        ), losses

    def _infer(self, job: library.Inference, parameters: FloatArray, samples: FloatArray) -> None:
        self._check_model_and_samples(parameters, samples)
        parameters, samples = np.ascontiguousarray(parameters), np.ascontiguousarray(samples)
        widths = np.array(self.architecture.widths)
        job.model = self._model(widths)
        job.parameters, job.samples, job.records = _address(parameters), _address(samples), len(samples)
        library.infer(job, self.path)

    def _model(self, widths: NDArray[np.int64]) -> library.Model:
        return library.Model(
            layers=len(widths) - 1, latent_layer=self.architecture.latent_layer, widths=_address(widths)
        )

    def _check_model_and_samples(self, parameters: FloatArray, samples: FloatArray) -> None:
        DenseTrainer._check_model_and_samples(self, parameters, samples)
        checks.check_single_precision(parameters)


def _address(array: NDArray[Any] | None) -> int | None:
    """Return where a C-contiguous array lies, null for None; the caller keeps it alive for the length of the call."""
    return None if array is None else array.ctypes.data
