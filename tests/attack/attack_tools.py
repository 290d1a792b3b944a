"""Small autoencoders with known fixed points, and a finished study made without a network."""

from math import prod
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker_server.plan import RunPlan
from broker_server.study import results
from broker_server.study.checkpoint import save_checkpoint
from broker_server.study.records import AttackRecord, Outcome, RoundRecord
from broker_server.study.store import StudyStore
from edge_client.codecs import codec_named
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.context import LocalContext
from edge_client.methods.defended import defended
from edge_client.methods.registry import method
from edge_client.model.choice import trainer_for
from edge_client.private_seeds import emulated
from edge_client.protocol.codec import MAX_BODY
from sim.attack.seen import Shape
from sim.config.study import Study, dump
from sim.data import device_name
from sim.emulation.models import save_model

FEATURES = 6
SMALL = Hyperparameters(hidden=(12,), latent_dim=3, upload_fraction=0.5, learning_rate=1e-2, recon_epochs=50,
                        align_epochs=2, local_epochs=50)  # fmt: skip


def affine(matrix: NDArray[np.floating], offset: NDArray[np.floating]) -> tuple[Shape, NDArray[np.float64]]:
    """Return the shape and the parameters (float64) of a linear autoencoder with T(x) = x M + b.

    One layer down, one up, both linear: E(x) = x M and D(z) = z I + b.
    """
    d = len(offset)
    shape = Shape(Hyperparameters(hidden=(), latent_dim=d), d)
    return shape, np.concatenate([matrix.ravel(), np.zeros(d), np.eye(d).ravel(), offset]).astype(np.float64)


IMAGES = {"model": "convolutional", "image": (3, 8, 8), "hidden": (4, 4), "latent_dim": 16, "learning_rate": 1e-3,
          "recon_epochs": 3, "local_epochs": 3}  # fmt: skip
"""What makes a study one of images, for `finished_study`."""


def records(rng: np.random.Generator, count: int, width: int = FEATURES) -> NDArray[np.float32]:
    """Return normal records near a plane of two dimensions in all."""
    plane = np.random.default_rng(0).normal(size=(2, width))
    return (rng.normal(size=(count, 2)) @ plane + 0.1 * rng.normal(size=(count, width))).astype(np.float32)


def finished_study(directory: Path, name: str = "gca", *, rounds: int = 2, normals: int = 150, records_each: int = 40,
                   completed: bool = True, **training: object) -> Path:  # fmt: skip
    """Make the folder of a study of one device, whose server echoes what comes up: its codes as centroids, its model
    as the aggregate. `training` is what differs from `SMALL`."""
    hyper = msgspec.structs.replace(SMALL, **training)
    study = Study(dataset="breast_cancer", method=name, devices=1, rounds=rounds, seed=7, training=hyper)  # type: ignore[arg-type]
    device, rng = device_name(1), np.random.default_rng(1)
    for folder in ("models", "rounds", "shards"):
        (directory / folder).mkdir(parents=True)
    (directory / "study.toml").write_text(dump(study))
    width = FEATURES if hyper.image is None else prod(hyper.image)
    samples = records(rng, records_each, width)
    test = np.concatenate([records(rng, normals, width), 9 * records(rng, 20, width)])
    np.savez(directory / "shards" / f"{device}.npz", samples=samples)
    np.savez(directory / "shards" / "test.npz", test=test, labels=np.repeat([0, 1], [normals, 20]))

    half, trainer = defended(method(name), hyper, emulated(study.seed, device)), trainer_for(hyper, width)
    codec = codec_named(hyper.upload_codec)

    def context(round: int) -> LocalContext:
        return LocalContext(hyper, trainer, samples, study.seed, device, round, lambda *told: None, each_epoch=False)

    state = half.initial(context(0))
    for round in range(1, rounds + 1):
        state, upload = half.before_upload(state, context(round))
        broadcast = upload = codec.unpack(codec.pack(upload), MAX_BODY)
        if name == "gca":
            broadcast = {"centroids": upload["latents"][:4].copy(), "support": np.full(4, 5.0, np.float32)}
        save_checkpoint(directory / "rounds" / f"{round:05d}.safetensors", broadcast, {"round": str(round)})
        state = half.after_broadcast(state, context(round), broadcast)
    save_model(directory / "models" / f"{device}.safetensors", state, device, "test")
    with StudyStore.create(directory) as store:
        number = store.begin_run(RunPlan("test", "0", name, study.seed, rounds), 1, "breast_cancer")
        for round in range(1, rounds + 1):
            store.record_round(number, RoundRecord(round, 0, 0, 0, None, (device,), (), (), (), {}, {}))
        store.finish(number, Outcome(completed, rounds, 1.0), 1.0, None)
    return directory


def kept(study: Path) -> list[AttackRecord]:
    """Return what is written down of attacks on a study's last run."""
    with StudyStore.open(study) as store:
        return results.attacks(store, results.last_run(store).run)
