"""The published files give exactly the widths, counts, dropped columns and row order that the paper's tables need."""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest

from sim.costs.payload import BANK_UPLOADED_CODES, uploaded_codes
from sim.data import Dataset, describe, iid, load
from sim.data.sources import SOURCES

pytestmark = pytest.mark.real_data
Loader = Callable[[str], Dataset]

# name: (N, d_x, test rows, anomalies among them)
SHAPES = {
    "academic": (788, 22, 2_842, 1_421),
    "adult": (24_720, 14, 16_281, 3_846),
    "bank": (34_633, 15, 10_578, 5_289),
    "credit": (283_823, 29, 984, 492),
    "magic": (5_644, 5, 13_376, 6_688),
}

DROPPED = {
    "academic": [
        ("Father's occupation", "Mother's occupation"),
        ("Admission grade", "Previous qualification (grade)"),
        ("Age at enrollment", "Marital status"),
        ("International", "Nacionality"),
        ("Curricular units 1st sem (enrolled)", "Curricular units 1st sem (credited)"),
        ("Curricular units 1st sem (evaluations)", "Curricular units 1st sem (credited)"),
        ("Curricular units 1st sem (approved)", "Curricular units 1st sem (credited)"),
        ("Curricular units 1st sem (grade)", "Course"),
        ("Curricular units 2nd sem (credited)", "Curricular units 1st sem (credited)"),
        ("Curricular units 2nd sem (enrolled)", "Curricular units 1st sem (credited)"),
        ("Curricular units 2nd sem (evaluations)", "Curricular units 1st sem (enrolled)"),
        ("Curricular units 2nd sem (approved)", "Curricular units 1st sem (enrolled)"),
        ("Curricular units 2nd sem (grade)", "Course"),
        ("Curricular units 2nd sem (without evaluations)", "Curricular units 1st sem (without evaluations)"),
    ],
    "adult": [],
    "bank": [("poutcome", "pdays")],
    "credit": [("Time", None)],
    "magic": [(name, "fLength") for name in ("fWidth", "fSize", "fConc", "fConc1", "fDist")],
}

# Raw values read off the files by hand: first and last training record, first test record, last test record.
# Categories stand as their place in the alphabet: job management is 4, technician 9, blue-collar 1, retired 5;
# workclass State-gov is 7 (after "?", Federal-gov, Local-gov, Never-worked), Private 4, Self-emp-inc 5.
ROWS = [
    ("academic", "Course", (9254, 8014, 9670, 9500)),
    ("academic", "GDP", (0.79, -4.06, 1.79, 0.79)),
    ("adult", "age", (39, 22, 25, 35)),
    ("adult", "workclass", (7, 4, 4, 5)),
    ("bank", "age", (58, 41, 33, 72)),
    ("bank", "job", (4, 9, 1, 5)),
    ("bank", "balance", (2143, 340, 308, 5715)),
    ("credit", "V1", (-1.3598071336738, -0.772798647755434, 1.81157814528944, 1.9919760961759)),
    ("credit", "Amount", (149.62, 17.48, 79.99, 42.53)),
    ("magic", "fLength", (28.7967, 12.5778, 12.7824, 187.1814)),
    ("magic", "fAlpha", (40.092, 58.1539, 68.3548, 52.731)),
]


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_class_counts(real: Loader, name: str) -> None:
    data = real(name)
    rows, width, test_rows, anomalies = SHAPES[name]
    assert data.train.shape == (rows, width)
    assert data.test.shape == (test_rows, width)
    assert (int(data.labels.sum()), len(data.labels)) == (anomalies, test_rows)
    assert (data.train.dtype, data.test.dtype, data.labels.dtype) == (np.float32, np.float32, np.int8)
    source = SOURCES[name]
    assert (source.train_rows, source.input_dim, source.test_rows) == (rows, width, test_rows)


@pytest.mark.parametrize("name", SHAPES)
def test_dropped_columns_and_their_causes(real: Loader, name: str) -> None:
    data = real(name)
    assert [(drop.column, drop.earlier) for drop in data.dropped] == DROPPED[name]
    assert all(drop.correlation is None or abs(drop.correlation) > 0.6 for drop in data.dropped)
    assert len(data.kept) == data.input_dim == data.train.shape[1]


@pytest.mark.parametrize("name", SHAPES)
def test_training_normals_are_standardised(real: Loader, name: str) -> None:
    train = real(name).train
    assert np.abs(train.mean(axis=0, dtype=np.float64)).max() < 1e-5
    assert np.abs(train.std(axis=0, dtype=np.float64) - 1.0).max() < 1e-5
    assert np.isfinite(real(name).test).all()


@pytest.mark.parametrize(("name", "column", "raw"), ROWS)
def test_row_order(real: Loader, name: str, column: str, raw: tuple[float, ...]) -> None:
    """Standardising is affine, so (x - x0) / (x1 - x0) is the same before and after it."""
    data = real(name)
    at = data.kept.index(column)
    ours = np.array([data.train[0, at], data.train[-1, at], data.test[0, at], data.test[-1, at]], dtype=np.float64)
    theirs = np.array(raw)
    assert (ours - ours[0]) / (ours[1] - ours[0]) == pytest.approx(
        (theirs - theirs[0]) / (theirs[1] - theirs[0]), abs=1e-4
    )


def test_balanced_sets_hold_normals_first(real: Loader) -> None:
    for name in ("academic", "bank", "credit", "magic"):
        labels = real(name).labels
        half = len(labels) // 2
        assert not labels[:half].any() and labels[half:].all()


def test_adult_keeps_the_order_of_its_test_file(real: Loader) -> None:
    # The first eight labels of the file: <=50K <=50K >50K >50K <=50K <=50K <=50K >50K
    assert real("adult").labels[:8].tolist() == [0, 0, 1, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "devices", "upload_fraction", "codes"),
    [
        ("academic", 10, 0.5, 390),
        ("adult", 20, 0.1, 2_460),
        ("bank", 20, 0.1, BANK_UPLOADED_CODES),
        ("credit", 50, 0.1, 28_350),
        ("magic", 10, 0.25, 1_410),
    ],
)
def test_uploaded_codes(real: Loader, name: str, devices: int, upload_fraction: float, codes: int) -> None:
    shards = iid(len(real(name).train), devices, seed=100)
    assert uploaded_codes(upload_fraction, [len(shard) for shard in shards]) == codes
    assert sum(math.floor(len(shard) * upload_fraction) for shard in shards) == codes


def test_arrays_are_read_only_and_provenance_names_the_file(real: Loader) -> None:
    data = real("magic")
    with pytest.raises(ValueError, match="read-only"):
        data.train[0, 0] = 1.0
    (origin,) = data.provenance
    assert origin.path.name.startswith("magic04.data")
    assert origin.sha256 == "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a"


def test_two_loads_are_equal_bit_by_bit(real: Loader) -> None:
    first, second = real("academic"), load("academic", offline=True)
    assert hashlib.sha256(first.train.tobytes()).digest() == hashlib.sha256(second.train.tobytes()).digest()


def test_the_catalogue_finds_what_is_there(data_dir: object) -> None:
    states = {line.name: line.state for line in describe(verify=False)}
    assert states.pop("cifar10") == "absent"  # its archive of 170 MB is not part of the test data
    assert set(states) == {*SHAPES, "breast_cancer", "cifar10_jpeg", "fashion_mnist"}
    assert set(states.values()) == {"present"}
