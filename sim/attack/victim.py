"""From the folder of a finished study to one of its devices, and to what the server sees of it.

That is what the device really sends: codes as its defences leave them, and arrays as they come out of the codec.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from broker_server.study.checkpoint import load_checkpoint
from broker_server.study.results import last_run
from broker_server.study.store import StudyStore
from edge_client.codecs import PLAIN, codec_named
from edge_client.data.records import load_records
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, DeviceMethod
from edge_client.methods.context import LocalContext
from edge_client.methods.defences import in_words
from edge_client.methods.defended import defended
from edge_client.methods.gca import select_upload
from edge_client.methods.registry import method
from edge_client.model.checks import check_parameters
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import ModelState
from edge_client.private_seeds import emulated
from edge_client.protocol.codec import MAX_BODY
from edge_client.seeds import stream
from sim.attack.seen import Floats, ReleasedModel, Shape, UploadedCodes
from sim.config.study import Study, load_study
from sim.data import device_name

REFERENCE_RECORDS = 100
"""Size of the bank H (paper, "Metrics")."""


@dataclass(frozen=True, eq=False)
class Victim:
    """One device after round R: its training records (N, d_x) and its model."""

    study: Study
    device: str
    samples: Floats
    state: ModelState

    @property
    def shape(self) -> Shape:
        return Shape(self.study.training, self.samples.shape[1])

    @property
    def half(self) -> DeviceMethod:
        """The device half of the method, with the study's defences and without its codecs."""
        return defended(method(self.study.method), self.study.training, emulated(self.study.seed, self.device))

    def context(self, round: int) -> LocalContext:
        """Return what the device works with in a round; rounds after R are those that would follow."""
        trainer = trainer_for(self.study.training, self.samples.shape[1])
        return LocalContext(
            hyper=self.study.training, trainer=trainer, samples=self.samples, seed=self.study.seed,
            device=self.device, round=round,
            observe=lambda phase, epoch, state, loss: None, each_epoch=False,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Bystanders:
    """Normal records that no device trained on: the `reference` bank (H, d_x), and `public` ones that are not in it,
    at most as many as the victim has."""

    reference: Floats
    public: Floats


def load_victim(directory: Path, number: int) -> Victim:
    """Return the device of this number, counted from 1; raises `GcaError` when the study has none that is finished."""
    with StudyStore.open(directory) as store:
        if not last_run(store).completed:
            raise ConfigError(f"{directory}: its run did not complete; an attack needs the models after the last round")
    study = load_study(directory / "study.toml")
    if study.method == "centralized":
        raise ConfigError("method centralized: the server has the records themselves, so there is nothing to extract")
    if not 1 <= number <= study.devices:
        raise ConfigError(f"victim {number}: the study has devices 1 to {study.devices}")
    device = device_name(number)
    model = directory / "models" / f"{device}.safetensors"
    if not model.parent.is_dir():
        raise ConfigError(
            f"{directory}: holds no models: those of real devices stay with them; attack a simulated study"
        )
    if not model.is_file():
        raise EnvironmentFault(f"{model}: is missing; the device wrote no model: choose another --victim")
    arrays, about = load_checkpoint(model)
    samples = load_records(directory / "shards" / f"{device}.npz").samples
    parameters = arrays["parameters"]
    check_parameters(parameters, trainer_for(study.training, samples.shape[1]).parameter_count)
    state = replace(ModelState.fresh(parameters.astype(np.float32)), epochs=int(about["epochs"]))
    return Victim(study, device, samples, state)


def bystanders(directory: Path, victim: Victim) -> Bystanders:
    """Draw both from the test set's normals, which no device trains on; the same for every method and victim."""
    records = load_records(directory / "shards" / f"{victim.device}.npz", directory / "shards" / "test.npz")
    assert records.test is not None and records.labels is not None
    normals = records.test[records.labels == 0]
    order = stream(victim.study.seed, "attack/bystanders").permutation(len(normals))
    reference, public = np.split(order, [REFERENCE_RECORDS])
    return Bystanders(normals[reference], normals[public[: len(victim.samples)]])


def final_model(victim: Victim) -> ReleasedModel:
    """The device's model after round R, with no further update (appendix "Parameter-sharing baselines").

    Where devices take in the aggregate at the end of a round, this is the last aggregate.
    """
    return ReleasedModel(victim.state.parameters, victim.shape)


def uploaded_model(victim: Victim, state: ModelState) -> ReleasedModel:
    """The model the device sends up in round R, given its state when the round opened: trained on its records alone
    since the aggregate of the round before."""
    _, arrays = victim.half.before_upload(state, victim.context(victim.study.rounds))
    return ReleasedModel(as_received(victim, arrays)["parameters"], victim.shape)


@dataclass(frozen=True, eq=False)
class Upload:
    """A GCA device's codes (M, d_z) of one round as they arrive, the rows (M,) of its records behind them, and its
    state after the reconstruction.

    The rows and the state are for the judge and never for the attacker.
    """

    codes: Floats
    rows: NDArray[np.int64]
    state: ModelState


def upload(victim: Victim, state: ModelState, round: int) -> Upload:
    """Run the first half of a round from `state`: reconstruction epochs, then the usual upload."""
    context = victim.context(round)
    after, arrays = victim.half.before_upload(state, context)
    return Upload(as_received(victim, arrays)["latents"], select_upload(context), after)


def as_received(victim: Victim, arrays: Arrays) -> Arrays:
    """Return the arrays of an upload as the study's codec gives them to the server."""
    codec = codec_named(victim.study.training.upload_codec)
    return codec.unpack(codec.pack(dict(arrays)), MAX_BODY)


def uploaded_codes(victim: Victim, sent: Upload) -> UploadedCodes:
    """What the server gets of it."""
    return UploadedCodes(sent.codes, victim.shape)


def on_the_way(hyper: Hyperparameters) -> tuple[str, ...]:
    """Say what becomes of codes between the device's encoder and the server."""
    told = [f"the codes are {done}"] if (done := in_words(hyper)) else []
    if hyper.upload_codec != PLAIN:
        told.append(f"the codes are those read from codec {hyper.upload_codec}")
    return tuple(told)
