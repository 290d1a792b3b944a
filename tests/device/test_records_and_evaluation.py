"""A device's file of records, every way it can be wrong, and the judgement of its model beside scikit-learn's."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from edge_client.data.records import Records, load_records
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.evaluation import Evaluator
from edge_client.model.autoencoder import Architecture
from edge_client.model.trainer import NumpyTrainer
from edge_client.seeds import stream

GOOD = {"samples": np.ones((4, 2)), "test": np.zeros((3, 2), np.int64), "labels": np.array([0, 1, 1])}


def written(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "records.npz", **arrays)
    return folder / "records.npz"


def test_a_good_file_is_read_as_float32(tmp_path: Path) -> None:
    records = load_records(written(tmp_path, **GOOD))
    assert records.samples.dtype == np.float32 and records.samples.shape == (4, 2)
    assert records.test is not None and records.test.dtype == np.float32
    assert records.labels is not None and records.labels.tolist() == [0, 1, 1]


def test_a_file_without_a_test_set_serves_training_alone(tmp_path: Path) -> None:
    records = load_records(written(tmp_path, samples=GOOD["samples"]))
    assert records.test is None and records.labels is None


def test_the_test_set_may_lie_in_a_file_of_its_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "held_out.npz", test=GOOD["test"], labels=GOOD["labels"])
    records = load_records(written(tmp_path, samples=GOOD["samples"]), tmp_path / "held_out.npz")
    assert records.test is not None and len(records.test) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": None}, "no array named 'samples'"),
        ({"samples": np.ones(4)}, r"shape \(records, features\), is float64\(4,\)"),
        ({"samples": np.ones((0, 2))}, r"is float64\(0, 2\)"),
        ({"samples": np.ones((4, 2), complex)}, "is complex128"),
        ({"samples": np.array([["a", "b"]])}, "is <U1"),
        ({"samples": np.array([[1.0, np.nan]])}, r"NaN or infinity \(row 0, feature 1\)"),
        ({"samples": np.array([[1.0, 1.0], [1e300, 1.0]])}, r"NaN or infinity \(row 1, feature 0\)"),
        ({"test": np.ones((3, 5))}, "'test' has 5 features, 'samples' of .* has 2"),
        ({"labels": np.array([0, 1])}, "'labels' must hold 3 values"),
        ({"labels": np.array([0, 1, 2])}, "'labels' must hold 3 values"),
        ({"labels": np.array([0, 1, np.nan])}, "'labels' must hold 3 values"),
        ({"labels": np.array(["0", "1", "1"])}, "'labels' must hold 3 values"),
        ({"labels": None}, "no array named 'labels'"),
        ({"test": None}, "no array named 'test'"),
    ],
)
def test_unusable_arrays_are_named_with_their_file(tmp_path: Path, change: dict, message: str) -> None:
    path = written(tmp_path, **{k: v for k, v in (GOOD | change).items() if v is not None})
    with pytest.raises(ConfigError, match=message) as caught:
        load_records(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_test_file_without_a_test_set_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, samples=GOOD["samples"])
    with pytest.raises(ConfigError, match="no array named 'labels'"):
        load_records(path, path)


def broken_stream(whole: bytes) -> bytes:
    return whole[:60] + b"\xff" * 30 + whole[90:]


@pytest.mark.parametrize(
    "spoil",
    [lambda whole: b"", lambda whole: b"garbage", lambda whole: whole[: len(whole) // 2], broken_stream],
    ids=["empty", "garbage", "truncated", "broken stream"],
)
def test_a_file_that_is_no_npz_is_an_error_and_no_traceback(tmp_path: Path, spoil) -> None:
    path = tmp_path / "records.npz"
    np.savez_compressed(path, samples=np.random.default_rng(0).random((300, 20)))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"not an \.npz file of plain arrays"):
        load_records(path)


def test_a_plain_npy_and_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "records.npy", np.ones((4, 2)))
    with pytest.raises(ConfigError, match="not an"):
        load_records(tmp_path / "records.npy")
    with pytest.raises(ConfigError, match="not an"):
        load_records(written(tmp_path, samples=np.array([[1, None]], dtype=object)))


def test_an_absent_file_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="No such file"):
        load_records(tmp_path / "nowhere.npz")
    with pytest.raises(EnvironmentFault, match="directory"):
        load_records(tmp_path)


def test_an_evaluation_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    labels = (np.arange(60) % 3 == 0).astype(np.int8)
    test = (rng.normal(size=(60, 6)) + 2.0 * labels[:, None]).astype(np.float32)
    records = Records(rng.normal(size=(100, 6)).astype(np.float32), test, labels)
    trainer = NumpyTrainer(Architecture(6, (8,), 2))
    state = trainer.initial(stream(1, "init"))
    told = Evaluator(records, trainer, 0.75).evaluate("recon", 3, state, 0.5)
    scores = trainer.score(state.parameters, test)
    tau = np.quantile(trainer.score(state.parameters, records.samples).astype(np.float64), 0.75)
    assert (told.phase, told.epoch, told.loss) == ("recon", 3, 0.5)
    assert told.threshold == pytest.approx(tau)
    assert told.accuracy == pytest.approx(np.mean((scores > tau) == (labels == 1)))
    assert told.auroc == pytest.approx(roc_auc_score(labels, scores))
    assert told.average_precision == pytest.approx(average_precision_score(labels, scores))


def test_without_a_test_set_qualities_are_undefined_and_the_threshold_is_not() -> None:
    trainer = NumpyTrainer(Architecture(2, (4,), 1))
    told = Evaluator(Records(np.eye(2, dtype=np.float32)), trainer, 0.5).evaluate(
        "align", 1, trainer.initial(stream(1, "init")), 0.0
    )
    assert np.isfinite(told.threshold)
    assert np.isnan([told.accuracy, told.auroc, told.average_precision]).all()
