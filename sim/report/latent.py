"""The latent space of a GCA study: supports and weights of its centroids, and a map of its devices' codes."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker_server.study.checkpoint import load_checkpoint
from edge_client.errors import EnvironmentFault
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.gca import inverse_support_weights, read_broadcast, uniform_weights
from edge_client.model.choice import trainer_for
from sim.report.study import ReportStudy

MAP_CODES = 1_200
"""Codes on a map, shared out evenly among the devices."""
ROUNDS_SHOWN = 60
"""Rounds whose centroids are shown; of a longer run, as many spread evenly over it."""

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Broadcast:
    """One round's centroids (K, d_z) with support N_k and weight w_k, each (K,)."""

    round: int
    centroids: Floats
    support: Floats
    weights: Floats


@dataclass(frozen=True)
class LatentMap:
    """Codes of the final models, (N, 2), by device, and the last centroids, (K, 2), on the codes' first two principal
    axes; `explained` is the share of the codes' variance along each. `before` holds (devices, codes) of the same
    records and axes before the last alignment, of those devices whose models of then are known."""

    devices: tuple[str, ...]
    codes: Floats
    before: tuple[tuple[str, ...], Floats]
    last: Broadcast
    centroids: Floats
    explained: tuple[float, float]


def broadcasts(study: ReportStudy) -> list[Broadcast]:
    """Return the centroids of up to ROUNDS_SHOWN rounds, the last among them; none if the method sends none.

    Raises `GcaError` for broadcasts or settings that cannot be read.
    """
    files = sorted((study.directory / "rounds").glob("*.safetensors"))
    if not files or "centroids" not in load_checkpoint(files[-1])[0]:
        return []
    hyper = _hyperparameters(study)
    spread = np.unique(np.linspace(0, len(files) - 1, ROUNDS_SHOWN).round().astype(int))
    return [_broadcast(files[place], hyper) for place in spread]


def latent_map(study: ReportStudy, last: Broadcast, before: Mapping[str, Floats] | None = None) -> LatentMap:
    """Return the map of a study; `before` holds models before the last alignment, by device. Raises `GcaError` when
    its models and records cannot be read together."""
    paths = sorted((study.directory / "models").glob("*.safetensors"))
    if not paths:
        raise EnvironmentFault(f"{study.directory}: holds no models")
    models = {path.stem: load_checkpoint(path)[0].get("parameters") for path in paths}
    names, pooled = _codes(study, models, len(paths))
    if len(pooled) < 2 or pooled.shape[1] < 2 or not np.isfinite(pooled).all():
        raise EnvironmentFault(f"{study.directory}: its codes span no plane")
    mean = pooled.mean(axis=0)
    _, spread, axes = np.linalg.svd(pooled - mean, full_matrices=False)
    share = spread**2 / max(np.sum(spread**2), np.finfo(float).tiny)
    plane = axes[:2].T
    earlier, codes = _codes(study, before, len(paths)) if before else ((), mean[None, :][:0])
    return LatentMap(
        names, (pooled - mean) @ plane, (earlier, (codes - mean) @ plane), last, (last.centroids - mean) @ plane,
        (float(share[0]), float(share[1])),
    )  # fmt: skip


def _codes(
    study: ReportStudy, models: Mapping[str, NDArray[np.generic] | None], share: int
) -> tuple[tuple[str, ...], Floats]:
    """Return the device of each code, and the codes (N, d_z), of the first records of each device."""
    hyper = _hyperparameters(study)
    names: list[str] = []
    codes = []
    for device, parameters in models.items():
        samples = _records(study.directory / "shards" / f"{device}.npz")[: max(1, MAP_CODES // share)]
        trainer = trainer_for(hyper, samples.shape[1])
        if parameters is None or parameters.shape != (trainer.parameter_count,):
            raise EnvironmentFault(f"{study.directory}: the model of {device} is none of this study")
        found = trainer.encode(parameters.astype(np.float32, copy=False), samples)
        names += [device] * len(found)
        codes.append(found)
    return tuple(names), np.concatenate(codes).astype(np.float64)


def _hyperparameters(study: ReportStudy) -> Hyperparameters:
    try:
        return msgspec.convert(dict(study.section("training")), Hyperparameters)
    except msgspec.ValidationError as error:
        raise EnvironmentFault(f"{study.directory / 'study.toml'}: [training] cannot be used: {error}") from None


def _broadcast(path: Path, hyper: Hyperparameters) -> Broadcast:
    centroids, support = read_broadcast(load_checkpoint(path)[0], hyper.latent_dim)
    weights = (
        uniform_weights(support) if hyper.weighting == "uniform" else
        inverse_support_weights(support, gamma=hyper.gamma, max_weight=hyper.max_weight, epsilon=hyper.epsilon)
    )  # fmt: skip
    return Broadcast(int(path.stem), centroids, support, weights)


def _records(path: Path) -> Floats:
    """Return a device's records (N, d_x)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            samples: Floats = file["samples"]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise EnvironmentFault(f"{path}: {error}; it holds no records of a device") from None
    if samples.ndim < 2 or not len(samples):
        raise EnvironmentFault(f"{path}: holds no records")
    return samples
