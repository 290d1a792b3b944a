"""What withstands hostile devices: by hand, and as a bound on what one device in ten can do."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from methods.runs import HYPER, SEED, WIDTH, uploads

from broker_server.clustering import ClusteringSpec
from broker_server.methods import averaging
from broker_server.methods.base import Upload
from broker_server.methods.coordinate_median import CoordinateMedianServer
from broker_server.methods.fedavg import MAX_PARAMETER, FedAvgServer
from broker_server.methods.gca import GcaServer
from broker_server.methods.trimmed_mean import TrimmedMeanServer
from edge_client.errors import ConfigError, GcaError
from sim.config import load_study
from sim.run_plan import server_method

MEDIAN, TRIMMED, MEAN = (kind(HYPER, SEED) for kind in (CoordinateMedianServer, TrimmedMeanServer, FedAvgServer))
GCA = {"latent_dim": 2, "upload_fraction": 1.0, "clustering": ClusteringSpec("kmeans", 3), "seed": 5}


def result(method: FedAvgServer, given: dict[str, Upload]) -> list[float]:
    return method.aggregate(1, given, {"parameters": np.zeros(len(given["a"].arrays["parameters"]), np.float32)}
                            ).broadcast["parameters"].tolist()  # fmt: skip


# ---- parameters ----------------------------------------------------------------------------------------------------


def test_the_median_by_hand() -> None:
    """Columns 1, -5, 9 and -2, 4, 100 and 0, 0.5, -1; the numbers of records count for nothing."""
    three = uploads((1, [1, -2, 0]), (1000, [-5, 4, 0.5]), (1, [9, 100, -1]))
    assert result(MEDIAN, three) == [1, 4, 0]
    assert result(MEDIAN, uploads((1, [1, -2]), (9, [2, 4]))) == [1.5, 1]  # of two, their mean


def test_the_trimmed_mean_by_hand() -> None:
    """Of five values a fifth at each end is one: (1 + 2 + 6) / 3 = 3 of -50, 1, 2, 6, 70."""
    five = uploads((1, [1, 6]), (7, [-50, 2]), (1, [70, -50]), (1, [2, 1]), (1, [6, 70]))
    method = TrimmedMeanServer(HYPER, SEED, trim=0.2)
    assert result(method, five) == [3, 3]
    found = method.aggregate(1, five)
    assert (found.diagnostics["trimmed"], found.remarks) == (1, ())


def test_a_trim_that_takes_nobody_is_told() -> None:
    found = TRIMMED.aggregate(1, uploads((1, [2, 0]), (1, [4, 0])))
    assert found.broadcast["parameters"].tolist() == [3, 0]
    assert found.remarks == ("0.1 of 2 uploads is none: nothing was trimmed",)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    models = np.random.default_rng(3).normal(size=(5, 17)).astype(np.float32)
    given = uploads(*((1, model.tolist()) for model in models))
    whole = [result(method, given) for method in (MEDIAN, TRIMMED)]
    monkeypatch.setattr(averaging, "BLOCK", 4)
    assert [result(method, given) for method in (MEDIAN, TRIMMED)] == whole
    np.testing.assert_array_equal(whole[0], np.median(models, axis=0))


VALUES = st.floats(-100, 100, width=32)
HOSTILE = st.floats(-MAX_PARAMETER, MAX_PARAMETER, width=32)


@settings(max_examples=200, deadline=None)
@given(
    honest=st.lists(st.lists(VALUES, min_size=3, max_size=3), min_size=9, max_size=9),
    hostile=st.lists(HOSTILE, min_size=3, max_size=3),
    place=st.integers(0, 9),
    claims=st.integers(1, 2**32),
)
def test_one_hostile_device_of_ten_stays_within_the_honest_ones(honest, hostile, place: int, claims: int) -> None:
    """Wherever it stands, whatever it sends and however many records it claims; and no more than one honest value
    away from what comes out without it."""
    lower, upper = np.min(honest, axis=0), np.max(honest, axis=0)
    all_ten = [(40, model) for model in honest]
    all_ten.insert(place, (claims, hostile))
    ordered = np.sort(np.array(honest), axis=0)
    for method in (MEDIAN, TRIMMED):
        found = np.array(result(method, uploads(*all_ten)))
        assert (found >= lower).all() and (found <= upper).all()
    median = np.array(result(MEDIAN, uploads(*all_ten)))
    assert (median >= ordered[3]).all() and (median <= ordered[5]).all()  # beside the honest median, ordered[4]


def test_the_mean_gives_way_to_one_hostile_device() -> None:
    """So that the bound above is one: FedAvg has none."""
    ten = uploads(*[(40, [1.0])] * 9, (2**32, [MAX_PARAMETER]))
    assert result(MEAN, ten)[0] > 0.99 * MAX_PARAMETER
    assert result(MEDIAN, ten) == result(TRIMMED, ten) == [1.0]


# ---- codes ---------------------------------------------------------------------------------------------------------


def codes(**by_device: list[list[float]]) -> dict[str, Upload]:
    return {d: Upload(len(rows), WIDTH, {"latents": np.array(rows, np.float32)}) for d, rows in by_device.items()}


def test_a_centroid_that_only_one_device_places_is_not_broadcast() -> None:
    """Around (0, 0) a, b and c have a code each, around (10, 0) a and b; at (0, 99) c alone has two."""
    pool = codes(a=[[0, 0], [10, 0]], b=[[0.2, 0], [10.2, 0]], c=[[0.1, 0.3], [0, 99], [0, 99.2]])
    plain, guarded = (GcaServer(**GCA, minimum_devices=m).aggregate(1, pool) for m in (1, 2))
    assert sorted(plain.broadcast["support"].tolist()) == [2, 2, 3] and plain.remarks == ()
    order = np.argsort(guarded.broadcast["centroids"][:, 0])
    assert guarded.broadcast["centroids"][order] == pytest.approx(np.array([[0.1, 0.1], [10.1, 0]]), abs=1e-6)
    assert guarded.broadcast["support"][order].tolist() == [3, 2]
    assert guarded.remarks == ("1 centroids of fewer than 2 devices dropped, support 2",)
    assert guarded.diagnostics["unbacked_centroids"] == 1


def test_codes_that_the_pool_left_out_back_nothing() -> None:
    """c's far code is beyond the norm bound, so its other one is still c's."""
    spec = ClusteringSpec("kmeans", 2, norm_bound=1e3)
    pool = codes(a=[[0, 0]], b=[[1, 0]], c=[[1e6, 0], [0.5, 0.5], [50, 0]])
    method = GcaServer(**GCA | {"clustering": spec}, minimum_devices=2)
    found = method.aggregate(1, pool)
    assert found.broadcast["support"].tolist() == [3]
    assert found.broadcast["centroids"] == pytest.approx(np.array([[0.5, 1 / 6]]), abs=1e-6)


def test_a_round_without_any_common_centroid_ends_with_the_mend() -> None:
    pool = codes(a=[[0, 0], [0, 1]], b=[[90, 0], [90, 1]], c=[[0, 90], [0, 91]])
    with pytest.raises(GcaError, match="minimum_devices_per_centroid"):
        GcaServer(**GCA, minimum_devices=2).aggregate(1, pool)


def test_a_quota_bounds_what_one_device_weighs() -> None:
    """Three of c's hundred codes enter the pool: the same ones whenever the round is played, others in the next."""
    far = [[100 + n, 50.0] for n in range(100)]
    pool = codes(a=[[0, 0], [0, 1]], b=[[1, 0], [1, 1]], c=far)
    method = GcaServer(**GCA | {"clustering": ClusteringSpec("kmeans", 7)}, device_quota=3)
    first, again, second = (method.aggregate(r, pool).broadcast for r in (1, 1, 2))
    assert first["support"].sum() == 2 + 2 + 3
    drawn = {round: {tuple(row) for row in found["centroids"].tolist() if row[0] >= 100}
             for round, found in ((1, first), (2, second))}  # fmt: skip
    assert first["centroids"].tolist() == again["centroids"].tolist()
    assert drawn[1] != drawn[2] and all(
        len(rows) == 3 and rows <= {tuple(row) for row in far} for rows in drawn.values()
    )


@settings(max_examples=30, deadline=None)
@given(shift=st.floats(1e3, 1e8), copies=st.integers(1, 300))
def test_one_hostile_device_of_ten_places_no_centroid_and_moves_none_far(shift: float, copies: int) -> None:
    """Nine devices with two codes each around the origin; the tenth sends as many far ones as it likes."""
    rng = np.random.default_rng(7)
    honest = {f"d{n}": rng.normal(size=(2, 2)).round(3).tolist() for n in range(9)}
    hostile = (shift + 0.5 * np.arange(2 * copies).reshape(-1, 2)).tolist()
    method = GcaServer(**GCA, device_quota=2, minimum_devices=2)
    found = method.aggregate(1, codes(**honest, evil=hostile)).broadcast
    box = np.abs([row for rows in honest.values() for row in rows]).max()
    assert np.abs(found["centroids"]).max() <= box + 1e-6
    assert found["support"].sum() <= 18


# ---- configuration -------------------------------------------------------------------------------------------------


def test_all_of_it_is_off_unless_asked_for() -> None:
    plain = server_method(load_study("demo"))
    assert isinstance(plain, GcaServer) and (plain.device_quota, plain.minimum_devices) == (None, 1)
    for method in ("fedavg", "fedprox"):
        assert "Median" not in type(server_method(load_study("demo", {"method": method}))).__name__


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_a_study_asks_for_it(method: str) -> None:
    asked = {"method": method, "aggregation.rule": "trimmed_mean", "aggregation.trim": 0.25}
    trimmed = server_method(load_study("demo", asked))
    assert isinstance(trimmed, TrimmedMeanServer) and math.isclose(trimmed.trim, 0.25)
    median = server_method(load_study("demo", {"method": method, "aggregation.rule": "median"}))
    assert isinstance(median, CoordinateMedianServer)
    guards = {"clustering.device_quota": 5, "clustering.minimum_devices_per_centroid": 2}
    gca = server_method(load_study("demo", guards))
    assert isinstance(gca, GcaServer) and (gca.device_quota, gca.minimum_devices) == (5, 2)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"method": "fednova", "aggregation.rule": "median"}, "aggregation.rule"),
        ({"method": "gca", "aggregation.rule": "trimmed_mean"}, "aggregation.rule"),
        ({"method": "fedavg", "aggregation.trim": 0.5}, "aggregation.trim"),
        ({"devices": 3, "clustering.minimum_devices_per_centroid": 4}, "more than the 3 devices"),
    ],
)
def test_what_cannot_be_combined_is_refused(keys: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_study("demo", keys)
