"""Studies: what the packaged ones say, what a wrong one is told, and that a resolved one loads back as itself."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from sim.config.presets import clustering_spec
from sim.config.study import (
    SIZE_LIMIT,
    Clustering,
    DatasetName,
    Evaluation,
    Participation,
    Study,
    dump,
    load_study,
    packaged,
    parse_override,
)
from sim.data.image_sources import IMAGE_SOURCES
from sim.data.sources import SOURCES

# C, K*, rho of the paper's section "Experimental setup"
PAPER = {
    "academic": (10, 10, 0.5),
    "adult": (20, 10, 0.1),
    "bank": (20, 10, 0.1),
    "credit": (50, 20, 0.1),
    "magic": (10, 80, 0.25),
}


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "study.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def complaint(tmp_path: Path, text: str | bytes, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        load_study(written(tmp_path, text), overrides)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(str(tmp_path) + "/", "")


@pytest.mark.parametrize("dataset", PAPER)
def test_the_papers_studies(dataset: str) -> None:
    study = load_study(f"paper/{dataset}")
    assert (study.dataset, study.rounds, study.seed, study.link, study.method) == (dataset, 100, 100, "none", "gca")
    assert (study.devices, study.clustering.components, study.training.upload_fraction) == PAPER[dataset]
    assert (study.training.recon_epochs, study.training.align_epochs, study.training.batch_size) == (5, 5, 50)
    assert (study.clustering.algorithm, study.clustering.covariance) == ("gmm", "full")
    assert (study.clustering.regularisation, clustering_spec(study).initialisations) == (1e-6, 1)
    assert (study.participation.fraction, study.minimum_devices) == (1.0, study.devices)


def test_packaged_studies_all_load_by_every_spelling_of_their_names() -> None:
    assert set(packaged()) >= {"demo", *(f"paper/{name}" for name in PAPER)}
    for name in packaged():
        study = load_study(name)
        assert load_study(f"configs/{name}.toml") == load_study(f"{name}.toml") == study


def test_the_demo_needs_no_download() -> None:
    study = load_study("demo")
    assert not any(file.url for file in SOURCES[study.dataset].files)
    assert study.link != "none"
    assert SOURCES[study.dataset].train_rows // study.devices >= study.data.minimum_records


def test_every_dataset_has_a_loader() -> None:
    assert set(get_args(DatasetName)) == {*SOURCES, *IMAGE_SOURCES}


def test_defaults_and_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, 'dataset = "magic"\n[training]\nlatent_dim = 8\n')
    assert load_study(path) == Study(dataset="magic", training=Hyperparameters(latent_dim=8))
    study = load_study(path, {"devices": 3, "training.hidden": [8, 4], "participation.deadline": 5, "seed": None})
    assert (study.devices, study.seed) == (3, 100)
    assert study.training == Hyperparameters(latent_dim=8, hidden=(8, 4))
    assert study.participation.deadline == 5.0


def test_restarts_follow_the_algorithm() -> None:
    def restarts(**chosen: object) -> int:
        return clustering_spec(Study(dataset="magic", clustering=Clustering(**chosen))).initialisations  # type: ignore[arg-type]

    assert clustering_spec(load_study("paper/magic", {"clustering.algorithm": "kmeans"})).initialisations == 10
    assert restarts() == 1
    assert restarts(algorithm="kmeans", initialisations=3) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("devices=3", ("devices", 3)),
        ("training.learning_rate = 1e-2", ("training.learning_rate", 0.01)),
        ("training.hidden=[64, 32]", ("training.hidden", [64, 32])),
        ("link=rate=50k,delay=100ms", ("link", "rate=50k,delay=100ms")),
        ('link="none"', ("link", "none")),
        ("broker=mqtt://10.0.0.1", ("broker", "mqtt://10.0.0.1")),
        ("link=1\nseed=2", ("link", "1\nseed=2")),
    ],
)
def test_settings_on_the_command_line(text: str, expected: tuple[str, object]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["devices", "=3", "devices=", ""])
def test_settings_without_key_or_value(text: str) -> None:
    with pytest.raises(ConfigError, match="write key=value"):
        parse_override(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["study.toml: dataset: is missing", '"breast_cancer"']),
        ('dataset = "magick"', ["study.toml: dataset: 'magick' is not allowed", '"magic"']),
        ('dataset = "magic"\ndevises = 3', ["study.toml: devises: unknown key", 'mean "devices"?', "rounds"]),
        ('dataset = "magic"\n[training]\nlatent = 3', ["training.latent: unknown key", 'mean "latent_dim"?']),
        ('dataset = "magic"\n"training.latent_dim" = 3', ["training.latent_dim: unknown key"]),
        ('dataset = "magic"\ntraining = 3', ["training: 3 is not a table", "[training]"]),
        ('dataset = "magic"\ndevices = 0', ["devices: 0 is not allowed", "a whole number from 1 to 1,000,000"]),
        ('dataset = "magic"\ndevices = 2.5', ["devices: 2.5 is not allowed"]),
        ('dataset = "magic"\ndevices = true', ["devices: True is not allowed"]),
        ('dataset = "magic"\ndevices = 2024-01-01', ["devices: datetime.date(2024, 1, 1) is not allowed"]),
        ('dataset = "magic"\nseed = -1', ["seed: -1 is not allowed", "from 0"]),
        ('dataset = "magic"\nlink = ""', ["link: '' is not allowed", "text of 1 to 200 characters"]),
        ('dataset = "magic"\nmethod = "fedsgd"', ["method: 'fedsgd' is not allowed", '"gca"']),
        (
            'dataset = "magic"\n[training]\nhidden = [64, 0]',
            ["training.hidden: [64, 0] is not allowed", "a list, each a whole number from 1 to 65,536"],
        ),
        ('dataset = "magic"\n[training]\nupload_fraction = nan', ["training.upload_fraction: nan", "above 0.0 to 1.0"]),
        ('dataset = "magic"\n[clustering]\ntolerance = inf', ["clustering.tolerance: inf is not allowed"]),
        ('dataset = "magic"\n[clustering]\nalgorithm = "gm"', ["clustering.algorithm: 'gm'", '"gmm", "kmeans"']),
        ('dataset = "magic"\n[participation]\nfraction = 0', ["participation.fraction: 0 is not allowed"]),
        ('dataset = "magic"\n[participation]\ndeadline = "soon"', ["deadline: 'soon'", '"auto" or a number above 0.0']),
        (
            'dataset = "magic"\ndevices = 3\n[participation]\nminimum_devices = 4',
            ["participation.minimum_devices: 4 is more than the 3 devices", "from 1 to 3"],
        ),
        ('dataset = "magic"\n[data]\npartition = "dirichlet"', ["data.partition: 'dirichlet'", '"iid"']),
        (
            'dataset = "magic"\n[evaluation]\nevery = "minute"',
            ["evaluation.every: 'minute'", '"epoch", "phase", "round"'],
        ),
        ('dataset = "magic', ["study.toml: is not valid TOML"]),
        ('dataset = "magic"\ndataset = "bank"', ["study.toml: is not valid TOML"]),
        (b'dataset = "\xff"', ["study.toml: is not UTF-8 text (byte 11)"]),
        (b"#" * (SIZE_LIMIT + 1), ["study.toml: holds more than 65,536 bytes"]),
    ],
)
def test_what_a_wrong_file_is_told(tmp_path: Path, text: str | bytes, parts: list[str]) -> None:
    message = complaint(tmp_path, text)
    assert message.startswith("study.toml: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"devices": "many"}, ["devices: 'many' is not allowed", "a whole number"]),
        ({"trainin.latent_dim": 3}, ["trainin: unknown key", 'mean "training"?']),
        ({"training.latent_dimm": 3}, ["training.latent_dimm: unknown key", 'mean "latent_dim"?']),
        ({"training.latent_dim": 0}, ["training.latent_dim: 0 is not allowed"]),
        ({"training": {"latent_dim": 3}}, ["training: is a section", "training.latent_dim"]),
        ({"devices.x": 3}, ["devices.x: unknown key; devices is a single value"]),
        ({"participation.minimum_devices": 11}, ["minimum_devices: 11 is more than the 10 devices"]),
        (
            {"participation.quorum": 6, "participation.fraction": 0.5},
            ["participation.quorum: 6 is more than the 5 devices that a round asks", "from 1 to 5"],
        ),
        (
            {"participation.deadline_limit": 30},
            ["participation.deadline_limit: 30 s is less than the 60 s of participation.wait_seconds", "60 or more"],
        ),
        (
            {"participation.wait_seconds": 1e5},
            ["participation.deadline_limit: 86400 s is less than the 100000 s", "allowed: 100000 or more"],
        ),
        ({"participation.grace": 0.5}, ["participation.grace: 0.5 is not allowed", "from 1"]),
    ],
)
def test_what_a_wrong_override_is_told(tmp_path: Path, overrides: dict[str, object], parts: list[str]) -> None:
    message = complaint(tmp_path, 'dataset = "magic"', overrides)
    assert message.startswith("command line: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize("changes", [{"deadline_limit": 60}, {"deadline_limit": 30, "deadline": 20}])
def test_a_limit_to_deadlines_that_lets_the_server_wait_as_it_says(changes: dict[str, int]) -> None:
    """It limits no deadline that is given in seconds."""
    load_study("demo", {f"participation.{key}": value for key, value in changes.items()})


@pytest.mark.parametrize(
    "url", ["embedded", "mqtt://broker", "mqtts://broker:8883", "mqtt://user@10.0.0.1:1883/", "mqtt://[::1]:1883"]
)
def test_broker_addresses(url: str) -> None:
    assert load_study("demo", {"broker": url}).broker == url


@pytest.mark.parametrize(
    "url", ["", "http://broker", "mqtt://", "mqtt://host:port", "mqtt://user:secret@host", "mqtt://a b", "tcp:1883"]
)
def test_wrong_broker_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match=r"broker: .* allowed: \"embedded\", mqtt://host"):
        load_study("demo", {"broker": url})


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'paper/majic: no such file .*did you mean "paper/magic"\?; packaged are demo'
    ):
        load_study("paper/majic")
    with pytest.raises(ConfigError, match="no such file"):
        load_study("../../etc/majic")
    with pytest.raises(ConfigError, match="is a folder"):
        load_study(tmp_path)


texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
studies = st.builds(
    Study,
    dataset=st.sampled_from(get_args(DatasetName)),
    devices=st.integers(1, 10**6),
    seed=st.integers(0, 2**63 - 1),
    link=texts,
    hardware=texts,
    training=st.builds(
        Hyperparameters,
        hidden=st.lists(st.integers(1, 65_536), max_size=8).map(tuple),
        learning_rate=st.floats(1e-300, 1e9),
        init=st.sampled_from(["shared", "independent"]),
    ),
    clustering=st.builds(Clustering, initialisations=st.none() | st.integers(1, 9), tolerance=st.floats(0, 1e9)),
    participation=st.builds(Participation, deadline=st.just("auto") | st.floats(1e-9, 1e9)),
    evaluation=st.builds(Evaluation, every=st.sampled_from(["epoch", "round"])),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(studies)
def test_a_resolved_study_loads_back_as_itself(tmp_path: Path, study: Study) -> None:
    text = dump(study)
    assert load_study(written(tmp_path, text)) == study
    assert dump(load_study(written(tmp_path, text))) == text
