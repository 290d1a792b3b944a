"""The offline default comes with scikit-learn; its own loader is the oracle."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from edge_client.errors import EnvironmentFault
from sim.data import describe, load
from sim.data.image_sources import IMAGE_SOURCES
from sim.data.sources import SOURCES


def test_split_and_standardisation_against_scikit_learn(bare_machine: Path) -> None:
    data = load("breast_cancer", offline=True)
    oracle = load_breast_cancer()
    names = [str(name) for name in oracle.feature_names]
    at = [names.index(name) for name in data.kept]
    benign, malignant = oracle.data[oracle.target == 1], oracle.data[oracle.target == 0]
    assert (len(benign), len(malignant)) == (357, 212)

    train = benign[:257]
    expected_test = np.concatenate([benign[257:], malignant[112:]])
    np.testing.assert_allclose(data.train, ((train - train.mean(0)) / train.std(0))[:, at], atol=1e-5)
    np.testing.assert_allclose(data.test, ((expected_test - train.mean(0)) / train.std(0))[:, at], atol=1e-4)
    assert data.labels.tolist() == [0] * 100 + [1] * 100

    r = np.abs(np.corrcoef(train, rowvar=False))
    kept = [name for j, name in enumerate(names) if not (r[:j, j] > 0.6).any()]
    assert list(data.kept) == kept
    assert len(kept) == 9
    assert not bare_machine.exists()  # nothing was written


def test_the_catalogue_needs_no_network(bare_machine: Path) -> None:
    lines = {line.name: line for line in describe()}
    assert list(lines) == sorted([*SOURCES, *IMAGE_SOURCES])
    assert lines.pop("fashion_mnist").state in {"verified", "absent"}  # it may come with the operating system
    ours = lines.pop("breast_cancer")
    assert (ours.state, ours.train_rows, ours.input_dim, ours.test_rows) == ("verified", 257, 9, 200)
    assert {line.state for line in lines.values()} == {"absent"}
    assert all(line.where == () and line.licence and line.home.startswith("https://") for line in lines.values())
    assert "3,960" in lines["bank"].remark


def test_a_damaged_file_is_named_in_the_catalogue(bare_machine: Path) -> None:
    damaged = bare_machine / "magic" / "magic04.data"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("28.7967,16.0021,g\n")
    line = next(line for line in describe() if line.name == "magic")
    assert line.state == "damaged"
    assert line.where == (damaged,)
    assert str(damaged) in line.problem and "e9314b7e" in line.problem


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(Exception, match=r"'magick' is unknown; choose one of academic, adult, bank"):
        load("magick")


def test_without_the_package_that_ships_it_a_dataset_is_absent_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> Path:
        raise EnvironmentFault("breast_cancer.csv comes with scikit-learn, which is missing")

    monkeypatch.setattr("sim.data.catalogue.find", lacking)
    (line,) = [one for one in describe() if one.name == "breast_cancer"]
    assert (line.state, line.where) == ("absent", ()) and "scikit-learn" in line.problem
