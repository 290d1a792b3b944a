"""An attack on a finished study: whom it takes for the victim, what it writes down, what it refuses."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from attack.attack_tools import FEATURES, IMAGES, SMALL, finished_study, kept

from broker_server.study import results
from broker_server.study.records import AttackRecord
from broker_server.study.store import StudyStore
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.methods.context import LocalContext
from edge_client.methods.gca import Gca
from edge_client.model.choice import trainer_for
from sim.attack.inversion import Search
from sim.attack.replay import NOT_REPLAYED, before_round, broadcasts, replay, with_moments
from sim.attack.shadow import attack as shadow_attack
from sim.attack.starts import starting_points
from sim.attack.study import SEED_TELLS, attack_study, link_study
from sim.attack.victim import bystanders, final_model, load_victim, upload, uploaded_codes
from sim.attack.white_box import attack as white_box_attack
from sim.reproduction.measures import take

# ---- the victim ------------------------------------------------------------------------------------------------------


def test_a_replay_brings_back_every_bit_of_the_device(study: Path) -> None:
    victim = load_victim(study, 1)
    exact, remarks = with_moments(study, victim)
    assert remarks == () and np.abs(exact.state.first_moment).max() > 0 == np.abs(victim.state.first_moment).max()
    np.testing.assert_array_equal(exact.state.parameters, victim.state.parameters)
    # The server of this study sent four of the codes back as centroids, so that they are known for each round.
    for round in (1, 2):
        sent = upload(victim, before_round(study, victim, round), round)
        np.testing.assert_array_equal(sent.codes[:4], broadcasts(study)[round - 1]["centroids"])


DEFENCES = {
    "upload_codec": "int8+zstd",
    "code_clip": 2.0,
    "code_noise": 0.3,
    "code_rotation": True,
}


@pytest.mark.parametrize(
    "chosen", [*({key: value} for key, value in DEFENCES.items() if key != "code_noise"), DEFENCES]
)
def test_the_attacker_sees_codes_as_they_arrive(tmp_path: Path, chosen: dict[str, object]) -> None:
    """As in the test before, for codes that pass defences and a codec: they are the server's to the bit."""
    study = finished_study(tmp_path / "study", **chosen)
    victim = load_victim(study, 1)
    exact, remarks = with_moments(study, victim)
    assert remarks == () and not np.array_equal(exact.state.first_moment, victim.state.first_moment)
    for round in (1, 2):
        sent = upload(victim, before_round(study, victim, round), round)
        np.testing.assert_array_equal(sent.codes[:4], broadcasts(study)[round - 1]["centroids"])
        assert set(chosen) != {"code_clip"} or np.linalg.norm(sent.codes, axis=1).max() <= 2.0 * (1 + 1e-6)
    record = attack_study(study, starts=3, steps=2)
    told = " ".join(record.details["remarks"])
    assert ("codec int8+zstd" in told) == ("upload_codec" in chosen)
    for key, word in (("code_clip", "clipped to length 2"), ("code_noise", "noise"), ("code_rotation", "rotated")):
        assert (word in told) == (key in chosen)
    assert attack_study(finished_study(tmp_path / "plain"), starts=3, steps=2).ntmse != record.ntmse


def test_the_codes_are_those_of_one_more_round(study: Path) -> None:
    victim, _ = with_moments(study, load_victim(study, 1))
    sent = upload(victim, victim.state, 3)
    trainer = trainer_for(SMALL, FEATURES)
    context = LocalContext(SMALL, trainer, victim.samples, 7, "dev-0001", 3, lambda *told: None)
    state, arrays = Gca().before_upload(replay(victim, broadcasts(study), 2), context)
    np.testing.assert_array_equal(sent.codes, arrays["latents"])
    np.testing.assert_allclose(sent.codes, trainer.encode(state.parameters, victim.samples[sent.rows]), atol=1e-6)


def test_a_device_that_cannot_be_replayed_restarts_its_optimiser_and_says_so(study: Path) -> None:
    with np.load(study / "shards" / "dev-0001.npz") as file:
        samples = file["samples"]
    np.savez(study / "shards" / "dev-0001.npz", samples=np.flip(samples, axis=0))  # not what the model was trained on
    _, remarks = with_moments(study, load_victim(study, 1))
    assert remarks == (NOT_REPLAYED,)
    assert NOT_REPLAYED in attack_study(study, starts=2, steps=1).details["remarks"]
    (study / "rounds" / "00001.safetensors").unlink()
    with pytest.raises(ConfigError, match="a broadcast is gone"):
        attack_study(study, starts=2, steps=1, round=2)


def test_the_reference_bank_is_normal_held_out_and_the_attackers_records_are_others(study: Path) -> None:
    victim = load_victim(study, 1)
    others = bystanders(study, victim)
    assert others.reference.shape == (100, FEATURES) and others.public.shape == (40, FEATURES)
    with np.load(study / "shards" / "test.npz") as file:
        normals = {row.tobytes() for row in file["test"][file["labels"] == 0]}
    bank, public, trained = ({row.tobytes() for row in part} for part in (*vars(others).values(), victim.samples))
    assert bank <= normals and public <= normals and not bank & public and not bank & trained


# ---- what is written down --------------------------------------------------------------------------------------------


def test_an_outcome_is_kept_and_replaced_by_one_of_the_same_settings(study: Path) -> None:
    assert kept(study) == []
    first = attack_study(study, starts=6, steps=10)
    assert kept(study) == [first] == [attack_study(study, starts=6, steps=10)]
    other = attack_study(study, starts=5, steps=10)
    assert kept(study) == [other, first]
    assert first.attack == "latent_only" and first.details["outputs"] == 6 and first.details["codes"] == 20
    assert first.round == 3 and first.details["remarks"] == []
    early = attack_study(study, starts=6, steps=10, round=1)
    assert early.round == 1 and early.ntmse != first.ntmse and len(kept(study)) == 3


def test_the_papers_table_is_of_the_papers_attack_and_no_other(study: Path) -> None:
    """Smaller, stronger and other attacks that lie in the study come before it in the order of the table."""
    attack_study(study, starts=4, steps=10)
    attack_study(study, starts=4, steps=10, knows=["initial-weights"])
    attack_study(study, round=1)
    taken = take(study, "ntmse")
    assert taken.value == attack_study(study).ntmse and taken.where == "r3"
    assert take(study, "excess_cosine").value == attack_study(study).excess_cosine and len(kept(study)) == 4


def test_an_attack_leaves_the_study_as_it_was(study: Path) -> None:
    before = {path: path.read_bytes() for path in study.rglob("*") if path.is_file() and "sqlite" not in path.name}
    attack_study(study, starts=3, steps=2)
    link_study(study)
    assert {path: path.read_bytes() for path in before} == before
    with StudyStore.open(study) as store:
        assert results.last_run(store).completed == 1


def test_a_small_test_set_is_told(tmp_path: Path) -> None:
    record = attack_study(finished_study(tmp_path / "s", normals=30), starts=3, steps=2)
    assert record.details["reference"] == 30 and any("bank of 30" in remark for remark in record.details["remarks"])


# ---- stronger attackers ----------------------------------------------------------------------------------------------


def test_a_shadow_with_the_victims_own_records_and_weights_reads_codes_as_the_victim_does(study: Path) -> None:
    """The best case of a shadow: the same start, the same records. What differs is the order of the records."""
    victim = load_victim(study, 1)
    sent = upload(victim, victim.state, 3)
    trainer = trainer_for(SMALL, FEATURES)
    context = LocalContext(SMALL, trainer, victim.samples, 7, "dev-0001", 0, lambda *told: None)
    initial = Gca().initial(context).parameters
    guesses = shadow_attack(uploaded_codes(victim, sent), broadcasts(study), victim.samples, 7, initial=initial)
    errors = np.square(guesses - victim.samples[sent.rows]).mean(axis=1)
    shuffled = np.square(guesses - np.roll(victim.samples[sent.rows], 1, axis=0)).mean(axis=1)
    assert errors.mean() < 0.5 * shuffled.mean()
    moved = [{**heard, "centroids": heard["centroids"] + 3} for heard in broadcasts(study)]
    elsewhere = shadow_attack(uploaded_codes(victim, sent), moved, victim.samples, 7, initial=initial)
    assert np.square(elsewhere - victim.samples[sent.rows]).mean() > 1.1 * errors.mean(), "it aligns to what was sent"


@pytest.mark.parametrize("knows", [["records"], ["initial-weights"], ["records", "initial-weights"], ["weights"]])
def test_each_knowledge_is_an_outcome_of_its_own(study: Path, knows: list[str]) -> None:
    plain = attack_study(study, starts=4, steps=10)
    told = attack_study(study, starts=4, steps=10, knows=knows)
    assert told.knows == "+".join(sorted(knows)) and told.ntmse != plain.ntmse
    assert ("paired_ntmse" in told.details) == ("records" in knows)
    assert len(kept(study)) == 2


@pytest.mark.parametrize(
    ("name", "knows"), [("gca", []), ("gca", ["records", "initial-weights"]), ("fedavg", []), ("fedavg", ["records"])]
)
def test_images_are_attacked_by_the_same_code(tmp_path: Path, name: str, knows: list[str]) -> None:
    study = finished_study(tmp_path / name, name, **IMAGES)
    victim = load_victim(study, 1)
    assert victim.samples.shape == (40, 192) and victim.shape.bounds == (-1.0, 1.0)
    record = attack_study(study, starts=5, steps=20, knows=knows)
    assert record.details["remarks"] == [] and record.details["outputs"] == 5 and record.ntmse is not None
    assert record.attack == ("white_box_final" if name == "fedavg" else "shadow" if knows else "latent_only")


def test_more_steps_on_images_bring_the_starts_nearer(tmp_path: Path) -> None:
    """More steps bring the starts nearer to what the model gives back, all inside the box."""
    victim = load_victim(finished_study(tmp_path / "study", "fedavg", **IMAGES), 1)
    points = starting_points(victim.shape, seed=7, count=6)
    first, later = (white_box_attack(final_model(victim), points, Search(steps=steps)) for steps in (0, 60))
    assert (later.residuals < first.residuals).all() and np.abs(later.inputs).max() <= 1.0
    np.testing.assert_array_equal(first.inputs, points)


def test_a_shadow_needs_records(tmp_path: Path) -> None:
    study = finished_study(tmp_path / "s", normals=100)  # all of them are in the reference bank
    with pytest.raises(ConfigError, match="no public records"):
        attack_study(study, starts=3, steps=2, knows=["records"])


def test_linkage_of_a_device_that_hardly_moves_any_more(tmp_path: Path) -> None:
    study = finished_study(tmp_path / "long", rounds=8)
    record = link_study(study)
    assert record.details["common"] > 0 and record.details["chance"] == 1 / 20
    assert record.details["linked"] >= 0.5 * record.details["common"]
    assert record.details["remarks"] == [SEED_TELLS]
    rotated = link_study(finished_study(tmp_path / "rotated", rounds=8, code_rotation=True)).details
    assert SEED_TELLS not in rotated["remarks"]
    assert rotated["linked"] < 0.5 * rotated["common"]
    assert rotated["linked_in_any_rotation"] == record.details["linked_in_any_rotation"]
    by_chance = rotated["chance"] * rotated["common"]
    assert rotated["linked_in_any_rotation"] >= 3 * by_chance > 0
    assert kept(study) == [record] and record.round == 8
    for round in (0, 1, 9):
        with pytest.raises(ConfigError, match="round"):
            link_study(study, round=round)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"victim": 2}, "devices 1 to 1"),
        ({"victim": 0}, "devices 1 to 1"),
        ({"starts": 0}, "--starts 0"),
        ({"steps": -1}, "--steps -1: use 0 or more"),
        ({"knows": ["everything"]}, "choose records or initial-weights"),
        ({"knows": ["weights", "records"]}, "control of its own"),
        ({"knows": ["weights"], "round": 1}, "leave --round out"),
        ({"model": "stolen"}, "choose final or uploaded"),
        ({"model": "uploaded"}, "upload no model"),
        ({"round": 0}, "rounds 1 to 2"),
        ({"round": 3}, "rounds 1 to 2"),
    ],
)
def test_what_makes_no_sense_is_refused(study: Path, given: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        attack_study(study, **given)


def test_an_unfinished_or_damaged_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="holds no study"):
        attack_study(tmp_path)
    with pytest.raises(ConfigError, match="did not complete"):
        attack_study(finished_study(tmp_path / "unfinished", completed=False))
    study = finished_study(tmp_path / "robbed")
    (study / "models" / "dev-0001.safetensors").unlink()
    with pytest.raises(EnvironmentFault, match="another --victim"):
        attack_study(study)


@pytest.mark.parametrize(("name", "told"), [("centralized", "nothing to extract"), ("single", "upload no codes")])
def test_a_method_that_uploads_nothing_is_refused(study: Path, name: str, told: str) -> None:
    config = study / "study.toml"
    config.write_text(config.read_text().replace('method = "gca"', f'method = "{name}"'))
    with pytest.raises(ConfigError, match=f"method {name}.*{told}"):
        attack_study(study)
    with pytest.raises(ConfigError, match=f"method {name}.*{told}"):
        link_study(study)


def test_a_store_that_is_read_only_says_so(study: Path) -> None:
    with StudyStore.open(study) as store, pytest.raises(EnvironmentFault, match="readonly"):
        store.record_attack(1, AttackRecord("dev-0001", "linkage", "", 2, 0, 0, None, None))


def test_the_table_is_added_to_a_study_that_has_none(study: Path) -> None:
    with sqlite3.connect(study / "study.sqlite") as raw:
        assert raw.execute("SELECT count(*) FROM sqlite_master WHERE name = 'attacks'").fetchone() == (0,)
    attack_study(study, starts=2, steps=1)
    with sqlite3.connect(study / "study.sqlite") as raw:
        assert raw.execute("SELECT count(*) FROM attacks").fetchone() == (1,)
