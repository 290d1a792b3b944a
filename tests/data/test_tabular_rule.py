"""The preprocessing rule on tables small enough to work out by hand."""

import numpy as np
import pytest

from sim.data.sources import RawFile, Source
from sim.data.tabular import Table, correlated, parse, prepare

FILE = RawFile("toy.csv", 10_000, "-", skip=1)


def toy(*files: RawFile, **changes: object) -> Source:
    fields: dict[str, object] = {
        "name": "toy",
        "title": "Toy",
        "licence": "none",
        "home": "https://example.org",
        "files": files or (FILE,),
        "label": "y",
        "normal": "good",
        "anomaly": "bad",
        "train_rows": 0,
        "test_rows": 0,
        "input_dim": 0,
    }
    return Source(**{**fields, **changes})  # type: ignore[arg-type]


def test_parse_reads_bom_quotes_blanks_categories_and_left_out_rows() -> None:
    text = '\ufeff"a ";b;"y"\r\n1;" red";good\r\n2;?;"bad"\r\n3;blue;maybe\r\n-4.5e1;red;good\r\n\r\n'
    source = toy(delimiter=";", categorical=frozenset({"b"}), left_out=frozenset({"maybe"}))
    table = parse([text.encode()], source)
    assert table.columns == ("a", "b")
    # "?" < "blue" < "red"; the code of blue exists although its only row is left out.
    assert table.values.tolist() == [[1.0, 2.0], [2.0, 0.0], [-45.0, 2.0]]
    assert table.labels.tolist() == [0, 1, 0]


def test_parse_shares_categories_between_files_and_drops_the_full_stop_of_labels() -> None:
    source = toy(
        RawFile("toy.data", 99, "-"),
        RawFile("toy.test", 99, "-", skip=1),
        columns=("a", "y"),
        categorical=frozenset({"a"}),
    )
    table = parse([b"m, good\nz, bad\n", b"|comment\na, good.\nz, bad.\n\n"], source)
    assert table.values.ravel().tolist() == [1.0, 2.0, 0.0, 2.0]
    assert table.labels.tolist() == [0, 1, 0, 1]
    assert table.part.tolist() == [0, 0, 1, 1]


def test_a_column_goes_if_an_earlier_one_correlates_even_if_that_one_went() -> None:
    """e1 and e2 are orthogonal; r(e1, e1+e2) = r(e1+e2, e2) = 1/sqrt 2 = 0.707, r(e1, e2) = 0."""
    e1, e2 = np.array([1.0, 1, -1, -1]), np.array([1.0, -1, 1, -1])
    columns = np.stack([e1, (e1 + e2) / np.sqrt(2), e2, -e1], axis=1)
    causes = correlated(columns)
    assert {later: earlier for later, (earlier, _) in causes.items()} == {1: 0, 2: 1, 3: 0}
    assert [causes[j][1] for j in (1, 2, 3)] == pytest.approx([0.7071, 0.7071, -1.0], abs=1e-4)
    assert correlated(columns[:, [0, 2]]) == {}


def test_exactly_at_the_limit_is_kept() -> None:
    standard = np.array([[1.0, 1.0], [-1.0, -1.0]])
    assert correlated(standard, limit=1.0) == {}


def test_split_takes_the_tail_and_standardises_with_training_normals_only() -> None:
    """Normals 0, 2, 4, 6, 100 in column a with one anomaly: training 0, 2, 4, 6, so mean 3 and sd sqrt 5."""
    a = [0.0, 50, 2, 4, 6, 100]
    constant = [7.0, 7, 7, 7, 7, 9]
    table = Table(
        columns=("a", "constant", "t"),
        values=np.array([a, constant, range(6)], dtype=float).T,
        labels=np.array([0, 1, 0, 0, 0, 0], dtype=np.int8),
        part=np.zeros(6, dtype=np.int8),
    )
    split = prepare(table, toy(omitted=("t",)))
    assert split.kept == ("a", "constant")
    assert [(drop.column, drop.earlier) for drop in split.dropped] == [("t", None)]
    root = np.sqrt(5)
    np.testing.assert_allclose(split.train[:, 0], np.array([-3, -1, 1, 3]) / root, rtol=1e-6)
    np.testing.assert_allclose(split.test[:, 0], np.array([97, 47]) / root, rtol=1e-6)
    assert split.train[:, 1].tolist() == [0, 0, 0, 0]
    assert split.test[:, 1].tolist() == [2, 0]  # 9 - 7 over a scale of one
    assert split.labels.tolist() == [0, 1]


def test_held_out_caps_both_classes() -> None:
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1], dtype=np.int8)
    table = Table(("a",), np.arange(8.0)[:, None], labels, np.zeros(8, dtype=np.int8))
    split = prepare(table, toy(held_out=2))
    # Training 0, 1, 2: mean 1, sd sqrt(2/3). Test: normals 3 and 4, anomalies 6 and 7.
    np.testing.assert_allclose(split.test[:, 0] * np.sqrt(2 / 3) + 1, [3, 4, 6, 7], rtol=1e-6)
    assert split.labels.tolist() == [0, 0, 1, 1]


def test_rows_of_unequal_width_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        parse([b"a,y\n1,good\n2,3,good\n"], toy())
