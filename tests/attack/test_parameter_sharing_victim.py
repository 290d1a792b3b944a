"""The victim of a white-box attack: which model the server has of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from attack.attack_tools import finished_study

from broker_server.study.checkpoint import load_checkpoint
from edge_client.errors import ConfigError
from sim.attack.metrics import leakage
from sim.attack.networks import halves
from sim.attack.replay import before_round
from sim.attack.study import attack_study
from sim.attack.victim import bystanders, final_model, load_victim, uploaded_model


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return finished_study(tmp_path / "study", "fedavg")


def test_the_final_model_is_the_last_aggregate(study: Path) -> None:
    aggregate = load_checkpoint(study / "rounds" / "00002.safetensors")[0]["parameters"]
    np.testing.assert_array_equal(final_model(load_victim(study, 1)).parameters, aggregate)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_the_uploaded_model_is_the_one_that_was_uploaded(tmp_path: Path, name: str) -> None:
    """The server of this study echoes the upload, so that what was uploaded in round R is the last broadcast."""
    study = finished_study(tmp_path / name, name, rounds=3)
    victim = load_victim(study, 1)
    uploaded = uploaded_model(victim, before_round(study, victim, 3))
    np.testing.assert_array_equal(uploaded.parameters, final_model(victim).parameters)


def test_both_are_attacked_and_kept_apart(study: Path) -> None:
    final = attack_study(study, starts=5, steps=20)
    uploaded = attack_study(study, starts=5, steps=20, model="uploaded")
    assert (final.attack, uploaded.attack) == ("white_box_final", "white_box_uploaded")
    assert final.round == uploaded.round == 2 and final.ntmse == uploaded.ntmse  # this server echoes
    assert final.ntmse is not None and final.ntmse > 0


def test_public_records_are_starts_in_place_of_noise(study: Path) -> None:
    """Without a step, the outputs are the records sent through the model."""
    told = attack_study(study, starts=30, steps=0, knows=["records"])
    victim = load_victim(study, 1)
    others, released = bystanders(study, victim), final_model(victim)
    with torch.no_grad():
        outputs = halves(released.shape, released.parameters).reconstruct(torch.tensor(others.public[:30])).numpy()
    assert told.ntmse == leakage(victim.samples, outputs, others.reference).ntmse and told.knows == "records"
    assert attack_study(study, starts=30, steps=0).ntmse > told.ntmse


def test_a_lost_broadcast_is_told(study: Path) -> None:
    (study / "rounds" / "00001.safetensors").unlink()
    with pytest.raises(ConfigError, match="a broadcast is gone"):
        attack_study(study, model="uploaded")


def test_there_are_no_codes_to_attack(study: Path) -> None:
    for words in ({"knows": ["initial-weights"]}, {"knows": ["records", "initial-weights"]}, {"round": 1}):
        with pytest.raises(ConfigError, match="has models"):
            attack_study(study, **words)  # type: ignore[arg-type]
