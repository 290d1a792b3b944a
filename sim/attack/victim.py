"""From the folder of a finished study to one of its devices, and to what the server sees of it.

A study keeps each device's final parameters, its records and the server's broadcasts. It does not keep Adam's
moments. With `optimizer = "kept"` the epochs that a victim runs here would have gone on from them; they start at
zero instead, as if the device had restarted. The report says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broker_server.checkpoint import load_checkpoint
from broker_server.results import last_run
from broker_server.store import StudyStore
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.methods.context import LocalContext, initial_state
from edge_client.methods.gca import Gca, select_upload
from edge_client.methods.registry import method
from edge_client.model.checks import check_parameters
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import ModelState
from edge_client.records import load_records
from edge_client.seeds import stream
from sim.attack.seen import Floats, ReleasedModel, Shape, UploadedCodes
from sim.config import Study, load_study
from sim.data import device_name

REFERENCE_RECORDS = 100
"""Size of the bank H (paper, "Metrics")."""

MOMENTS_LOST = "a study does not keep Adam's moments: the epochs that the victim runs for this start from zero moments"


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

    def context(self, rounds_later: int) -> LocalContext:
        """Return the device's round R + `rounds_later`."""
        trainer = trainer_for(self.study.training, self.samples.shape[1])
        return LocalContext(
            hyper=self.study.training, trainer=trainer, samples=self.samples, seed=self.study.seed,
            device=self.device, round=self.study.rounds + rounds_later,
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
    if not 1 <= number <= study.devices:
        raise ConfigError(f"victim {number}: the study has devices 1 to {study.devices}")
    device = device_name(number)
    model = directory / "models" / f"{device}.safetensors"
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


def broadcasts(directory: Path) -> list[Mapping[str, NDArray[Any]]]:
    """Return what the server sent, round after round."""
    return [load_checkpoint(path)[0] for path in sorted((directory / "rounds").glob("*.safetensors"))]


def final_model(victim: Victim) -> ReleasedModel:
    """The device's model after round R, with no further update (appendix "Parameter-sharing baselines").

    Where devices take in the aggregate at the end of a round, this is the last aggregate.
    """
    return ReleasedModel(victim.state.parameters, victim.shape)


def uploaded_model(directory: Path, victim: Victim) -> ReleasedModel:
    """The model the device sent up in round R: trained on its records alone since the aggregate of the round before.

    Not kept in a study; the device's epochs of round R are run again.
    """
    hyper, sent = victim.study.training, broadcasts(directory)
    if len(sent) != victim.study.rounds:
        raise EnvironmentFault(f"{directory}: rounds/ holds {len(sent)} of {victim.study.rounds} broadcasts")
    context = victim.context(0)
    theta = sent[-2]["parameters"] if len(sent) > 1 else initial_state(context).parameters
    state = replace(ModelState.fresh(theta), epochs=max(0, victim.state.epochs - hyper.local_epochs))
    _, upload = method(victim.study.method).before_upload(state, context)
    return ReleasedModel(upload["parameters"], victim.shape)


def uploaded_codes(victim: Victim) -> tuple[UploadedCodes, NDArray[np.int64]]:
    """What the server gets of a GCA device in one more round: reconstruction epochs, then the usual upload.

    The second value, the rows of the records behind the codes, is for the judge and not for the attacker.
    """
    _, codes, rows = upload(victim, victim.state, rounds_later=1)
    return UploadedCodes(codes, victim.shape), rows


def upload(victim: Victim, state: ModelState, rounds_later: int) -> tuple[ModelState, Floats, NDArray[np.int64]]:
    """Run the first half of a round from `state`; return the state, the codes (M, d_z) and their records' rows (M,)."""
    context = victim.context(rounds_later)
    state, arrays = Gca().before_upload(state, context)
    return state, arrays["latents"], select_upload(context)
