"""The victim of a white-box attack: which model the server has of it."""

from pathlib import Path

import numpy as np
import pytest
from attack.attack_tools import finished_study

from broker_server.checkpoint import load_checkpoint
from edge_client.errors import ConfigError, EnvironmentFault
from sim.attack.study import attack_study
from sim.attack.victim import final_model, load_victim, uploaded_model


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return finished_study(tmp_path / "study", "fedavg")


def test_the_final_model_is_the_last_aggregate(study: Path) -> None:
    aggregate = load_checkpoint(study / "rounds" / "00002.safetensors")[0]["parameters"]
    np.testing.assert_array_equal(final_model(load_victim(study, 1)).parameters, aggregate)


def test_the_uploaded_model_is_trained_again_from_the_aggregate_before(tmp_path: Path) -> None:
    """With one round nothing is lost: Adam starts from zero there anyway, and the server echoed the upload."""
    study = finished_study(tmp_path / "one", "fedavg", rounds=1)
    victim = load_victim(study, 1)
    np.testing.assert_array_equal(uploaded_model(study, victim).parameters, final_model(victim).parameters)


def test_both_are_attacked_and_kept_apart(study: Path) -> None:
    final = attack_study(study, starts=5, steps=20)
    uploaded = attack_study(study, starts=5, steps=20, model="uploaded")
    assert (final.attack, uploaded.attack) == ("white_box_final", "white_box_uploaded")
    assert final.details["remarks"] == [] and "moments" in uploaded.details["remarks"][0]
    assert final.ntmse is not None and final.ntmse > 0


def test_a_lost_broadcast_is_told(study: Path) -> None:
    (study / "rounds" / "00001.safetensors").unlink()
    with pytest.raises(EnvironmentFault, match="1 of 2 broadcasts"):
        uploaded_model(study, load_victim(study, 1))


def test_there_are_no_codes_to_attack(study: Path) -> None:
    with pytest.raises(ConfigError, match="has the model already"):
        attack_study(study, knows=["records"])
