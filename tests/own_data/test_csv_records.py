"""A CSV file becomes records: by hand, as a property, and every way in which a file can be wrong."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.data import csv_records
from edge_client.data.csv_records import Columns, load_csv
from edge_client.data.scaler import Scaler, read_scaler, write_scaler
from edge_client.errors import ConfigError, EnvironmentFault, GcaError

LABELLED = Columns("state", "ok")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "own.csv"


def pump(file: Path, normals: int = 20, anomalies: int = 2) -> Path:
    """Columns `flow` 0, 1, 2, ... and `heat` alternating 5 and 7; anomalies at 100, 101, ... stand first."""
    rows = [f"bad,{100 + n},9" for n in range(anomalies)]
    rows += [f"ok,{n},{5 + 2 * (n % 2)}" for n in range(normals)]
    file.write_text("state,flow,heat\n" + "\n".join(rows) + "\n")
    return file


def test_a_file_by_hand(file: Path) -> None:
    """Of 20 normal records the last four are held out. Training flow is 0 ... 15: mean 7.5, variance (16^2 - 1)/12 =
    21.25; heat is 5 and 7 in turn: mean 6, deviation 1."""
    records, scaler, told = load_csv(pump(file), LABELLED)
    assert scaler == Scaler(("flow", "heat"), (7.5, 6.0), (pytest.approx(21.25**0.5), 1.0))
    assert records.samples.dtype == np.float32 and records.samples.shape == (16, 2)
    assert records.samples[0].tolist() == pytest.approx([-7.5 / 21.25**0.5, -1])
    assert records.test is not None and records.labels is not None
    assert records.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert records.test[:, 0].tolist() == pytest.approx([(v - 7.5) / 21.25**0.5 for v in (16, 17, 18, 19, 100, 101)])
    assert told == "16 normal records to train on, 4 normal and 2 anomalous to judge by"


def test_without_labels_everything_is_normal(file: Path) -> None:
    records, _, told = load_csv(pump(file, anomalies=0), Columns(drop=("state",)))
    assert len(records.samples) == 20 and records.test is None is records.labels
    assert told == "20 records to train on, none to judge by (no label column)"


@pytest.mark.parametrize("drop", [("a", "b, still", "c"), ("a,c", "b, still"), ("c, a,", "b, still")])
def test_columns_to_leave_out_are_split_at_commas_unless_that_is_their_name(file: Path, drop: tuple[str, ...]) -> None:
    file.write_text('a,"b, still",c,d\n' + "".join(f"x,y,z,{n}\n" for n in range(12)))
    _, scaler, _ = load_csv(file, Columns(drop=drop))
    assert scaler.columns == ("d",)


def test_labels_without_an_anomaly_hold_nothing_out(file: Path) -> None:
    records, _, told = load_csv(pump(file, anomalies=0), LABELLED)
    assert len(records.samples) == 20 and records.test is None
    assert "no anomaly in 'state'" in told


@pytest.mark.parametrize("normal", ["0", "0.0", "00"])
def test_numbers_are_the_same_label_however_they_are_written(file: Path, normal: str) -> None:
    file.write_text("x,y\n" + "".join(f"{n},{label}\n" for n, label in enumerate(["0", " 0.0", "1"] * 10)))
    records, _, _ = load_csv(file, Columns("y", normal))
    assert len(records.samples) == 16


def test_a_shared_scaler_makes_equal_readings_equal_codes_whatever_the_order_of_columns(file: Path) -> None:
    _, shared, _ = load_csv(pump(file), LABELLED)
    write_scaler(file.with_suffix(".json"), shared)
    other = file.with_name("other.csv")
    other.write_text("heat,flow,note\n" + "".join(f"7,{n},hello\n" for n in range(10)))  # heat is constant here
    records, used, _ = load_csv(other, Columns(drop=("note",)), read_scaler(file.with_suffix(".json")))
    assert used == shared
    assert records.samples[3].tolist() == pytest.approx([(3 - 7.5) / 21.25**0.5, 1.0])


def test_excel_and_windows_are_understood(file: Path) -> None:
    rows = "".join(f'"{n}", {n * n} \r\n' for n in range(12))
    file.write_bytes(b"\xef\xbb\xbf" + f"a, b\r\n{rows}\r\n\r\n".encode())
    records, scaler, _ = load_csv(file, Columns())
    assert scaler.columns == ("a", "b") and records.samples.shape == (12, 2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 7),
)
def test_every_record_comes_back_once(tmp_path_factory, rows: list[tuple[float, float, bool]], at_once: int) -> None:
    """Undoing the scaling gives the file's values: normals in order, their last fifth and the anomalies for the test.
    Or the file is refused, for one of two reasons."""
    file = tmp_path_factory.mktemp("csv") / "own.csv"
    file.write_text("x,bad,y\n" + "".join(f"{x!r},{int(bad)},{y!r}\n" for x, y, bad in rows))
    patch = pytest.MonkeyPatch()
    patch.setattr(csv_records, "_ROWS_AT_ONCE", at_once)
    try:
        records, scaler, _ = load_csv(file, Columns("bad"))
    except ConfigError as error:
        assert any(why in str(error) for why in ("to train on, at least", "teaches nothing", "no record has"))
        return
    finally:
        patch.undo()
    normal = [(x, y) for x, y, bad in rows if not bad]
    anomalous = [(x, y) for x, y, bad in rows if bad]
    train = normal[: len(normal) - (len(normal) // 5 if anomalous else 0)]
    mean, deviation = np.array(scaler.mean), np.array(scaler.deviation)
    tolerance = 1e-5 * (np.abs(train).max() + np.abs(anomalous or [0]).max() + np.abs(normal).max())
    np.testing.assert_allclose(records.samples * deviation + mean, train, atol=tolerance)
    np.testing.assert_allclose(records.samples.mean(axis=0), 0, atol=1e-4)
    if anomalous:
        assert records.test is not None
        expected = normal[len(train) :] + anomalous
        np.testing.assert_allclose(records.test * deviation + mean, expected, atol=tolerance)


GOOD = "".join(f"{n},{n * n}\n" for n in range(12))


@pytest.mark.parametrize(
    ("content", "columns", "told"),
    [
        ("", Columns(), "is empty"),
        ("\n" + GOOD, Columns(), "is empty"),
        (GOOD, Columns(), "first line holds numbers"),
        ("a;b\n1;2\n", Columns(), "separated by ';'"),
        ("a,a\n" + GOOD, Columns(), "two columns are named 'a'"),
        ("a,b\n" + GOOD, Columns("state"), "has no column 'state'; it has 'a', 'b'"),
        ("a,b\n" + GOOD, Columns(drop=("time",)), "has no column 'time'"),
        ("a,b\n" + GOOD, Columns(drop=("a,time",)), "has no column 'time'"),
        ("a,b\n" + GOOD, Columns(drop=("a", "b")), "no column is left"),
        ("a,b\n1,2\n3,warm\n" + GOOD, Columns(), "line 3: column 'b' holds 'warm'"),
        ("a,b\n1,2\n\n3,\n" + GOOD, Columns(), "line 4: column 'b' is empty"),
        ("a,b\n1,nan\n" + GOOD, Columns(), "line 2: column 'b' holds 'nan'"),
        ("a,b\n-inf,1\n" + GOOD, Columns(), "line 2: column 'a' holds '-inf'"),
        ("a,b\n1_0,1\n" + GOOD, Columns(), "line 2: column 'a' holds '1_0'"),
        ("a,b\n1,2,3\n" + GOOD, Columns(), "line 2: 3 values under 2 names"),
        ("a,b\n" + "".join(f"{n},4\n" for n in range(12)), Columns(), "column 'b' is 4 in all 12 training records"),
        (
            "a,b,c,d\n" + "".join(f"{n},4,5,{n}\n" for n in range(12)),
            Columns(),
            "columns 'b' is 4, 'c' is 5 in all 12 training records and so teach nothing; leave out with --drop 'b' "
            "--drop 'c', or give a --scaler",
        ),
        ("a,b\n" + "3,4\n" * 12, Columns(), "none of the 2 columns varies in the 12 training records"),
        (
            ",".join(f"c{n}" for n in range(21)) + "\n" + "".join(f"{n}{',4' * 20}\n" for n in range(12)),
            Columns(),
            "'c12' is 4 and 8 more are constant in all 12 training records",
        ),
        ("a,b\n1,2\n3,5\n", Columns(), "2 normal records to train on, at least 10 are needed"),
        ("a,b\n", Columns(), "0 normal records"),
        ("a,b\n" + GOOD, Columns("b", "ok"), "no record has 'ok' in 'b', but '0', '1', '4', '9', '16'; give --normal"),
        ("a,b\n1e308,1\n-1e308,2\n" + GOOD, Columns(), "'a' are beyond what can be standardised"),
        ('a,b\n"' + "x" * 200_000 + '",1\n', Columns(), "is no CSV file"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(file: Path, content: str, columns: Columns, told: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_csv(file, columns)
    assert str(file) in str(caught.value) and told in str(caught.value) and "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(content=st.one_of(st.binary(max_size=200), st.text('ab01,.\n";\t -e', max_size=120).map(str.encode)))
def test_no_content_makes_anything_but_records_or_a_line(tmp_path_factory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("csv") / "own.csv"
    file.write_bytes(content)
    for columns in (Columns(), Columns("a"), Columns(drop=("a",))):
        try:
            records, _, _ = load_csv(file, columns)
        except GcaError as error:
            assert "\n" not in str(error)
        else:
            assert np.isfinite(records.samples).all()


def test_a_huge_file_is_refused_before_it_is_read(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(csv_records.MAX_BYTES + 1)  # takes no room on the disk
    with pytest.raises(ConfigError, match="give this device fewer records"):
        load_csv(file, Columns())


def test_a_file_that_is_not_there_is_told(file: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"own\.csv: No such file"):
        load_csv(file, Columns())


# ---- scalers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "scaler", "told"),
    [
        (("flow", "heat", "rpm"), None, "lacks the column 'rpm' that the scaler has"),
        (("flow",), None, "column 'heat' is not in the scaler; leave it out with --drop"),
        (("flow", "heat"), Scaler(("flow", "heat"), (0.0, -1e300), (1.0, 1e-300)), "'heat' is too far"),
    ],
)
def test_a_scaler_that_does_not_fit_is_told(file: Path, columns, scaler: Scaler | None, told: str) -> None:
    scaler = scaler or Scaler(columns, (0.0,) * len(columns), (1.0,) * len(columns))
    with pytest.raises(ConfigError, match=told):
        load_csv(pump(file), LABELLED, scaler)


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"columns":["a"],"mean":[0],"deviation":[0]}', '{"columns":["a"],"mean":[],"deviation":[1]}',
        '{"columns":["a","a"],"mean":[0,0],"deviation":[1,1]}', '{"columns":["a"],"mean":[NaN],"deviation":[1]}',
        '{"columns":["a"],"mean":[0],"deviation":[1],"more":1}', "\xff",
    ],
)  # fmt: skip
def test_what_is_no_scaler_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scaler.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"scaler\.json: is no scaler"):
        read_scaler(path)
    with pytest.raises(EnvironmentFault, match="absent"):
        read_scaler(tmp_path / "absent")
