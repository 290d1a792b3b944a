"""What withstands hostile devices: by hand, and as a bound on what one device in ten can do."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from methods.runs import HYPER, SEED, WIDTH, uploads

from broker_server.clustering import ClusteringSpec
from broker_server.methods import averaging
from broker_server.methods.base import Upload
from broker_server.methods.coordinate_median import CoordinateMedianServer
from broker_server.methods.fedavg import MAX_PARAMETER, FedAvgServer
from broker_server.methods.gca import GcaServer
from broker_server.methods.geometric_median import geometric_median
from broker_server.methods.trimmed_mean import TrimmedMeanServer
from edge_client.errors import ConfigError, GcaError
from sim.config.run_plan import server_method
from sim.config.study import load_study

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
    assert guarded.remarks == ("1 centroid of fewer than 2 devices dropped, support 2",)
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


# ---- the geometric median of the devices' means --------------------------------------------------------------------


def test_the_geometric_median_by_hand() -> None:
    """Of a triangle with an angle of 120 degrees or more it is that corner; of four corners of a convex figure the
    crossing of its diagonals; of an equilateral triangle its middle; of an odd number on a line the middle one."""
    obtuse = np.array([[0.0, 0.0], [4.0, 0.0], [-3.0, 1.0]])
    np.testing.assert_allclose(geometric_median(obtuse), [0, 0], atol=1e-9)
    kite = np.array([[0.0, 0.0], [6.0, 0.0], [2.0, 3.0], [2.0, -50.0]])
    np.testing.assert_allclose(geometric_median(kite), [2, 0], atol=1e-7)
    equal = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]])
    np.testing.assert_allclose(geometric_median(equal), [1, 1 / math.sqrt(3)], atol=1e-9)
    line = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [50.0, 50.0], [60.0, 60.0]])
    np.testing.assert_allclose(geometric_median(line), [2, 2], atol=1e-6)


def test_the_median_of_points_that_are_almost_on_a_line() -> None:
    """The crossing of the diagonals again, of a figure so flat that Weiszfeld's step alone is still 2 % of its length
    away after a thousand."""
    flat = np.array([[0.0, 0.0], [100.0, 0.1], [1.0, 0.1], [60.0, 0.0]])
    ends, middle = (flat[0], flat[1]), (flat[2], flat[3])
    run, other = ends[1] - ends[0], middle[1] - middle[0]
    along = np.linalg.solve(np.array([run, -other]).T, middle[0] - ends[0])[0]
    np.testing.assert_allclose(geometric_median(flat), ends[0] + along * run, rtol=1e-6)


def test_points_that_coincide_and_points_that_are_two() -> None:
    same = np.full((4, 3), 7.0)
    assert geometric_median(same).tolist() == [7, 7, 7] and geometric_median(same[:1]).tolist() == [7, 7, 7]
    assert geometric_median(np.array([[0.0, 0.0], [2.0, 4.0]])).tolist() == [1, 2]
    most = np.array([[1.0, 1.0]] * 3 + [[9.0, 0.0], [0.0, 9.0]])  # three of five in one place hold it there
    np.testing.assert_allclose(geometric_median(most), [1, 1], atol=1e-9)
    even = np.array([[0.0], [1.0], [2.0], [3.2]])  # of all points between the middle two, the mean is one
    assert geometric_median(even).tolist() == [pytest.approx(1.55)]
    start = np.array([[0.0, 0.0], [3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # the mean is one of the points
    np.testing.assert_allclose(geometric_median(start), [0, 0], atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.integers(1, 5))
@example(273484, 3, 4)  # the median is one of the points, to which the iteration came within 1e-8 only
def test_no_point_near_the_geometric_median_is_nearer_to_all(seed: int, count: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, width)) * rng.choice([1.0, 1.0, 100.0], size=(count, 1))
    median = geometric_median(points)

    def far(at: np.ndarray) -> float:
        return float(np.linalg.norm(points - at, axis=1).sum())

    least, spread = far(median), float(np.ptp(points, axis=0).max())
    for scale in (1e-1, 1e-3, 1e-5):
        around = median + rng.normal(size=(20, width)) * spread * scale
        assert min(map(far, around)) >= least * (1 - 1e-9)
    assert min(map(far, points)) >= least * (1 - 1e-9)


def of_device(*rows: list[float]) -> Upload:
    return Upload(100, 5, {"latents": np.array(rows, np.float32)})


def test_a_centroid_at_the_geometric_median_of_its_devices_by_hand() -> None:
    """Two clusters, around (0, 0) and (100, 0). In the first the devices' means are (0, 0), (2, 0), (1, sqrt 3) and, of
    the one that lies, (1, 9): of these four corners (1, sqrt 3) lies inside the triangle of the others, so it is the
    median. The codes' mean would be (1, (9 x 9 + 3 sqrt 3) / 18) = (1, 4.79). Of the second, device d has two codes
    only, and no vote."""
    s = math.sqrt(3)
    given = {
        "a": of_device([0, 0], [0, 0], [0, 0], [100, 0], [101, 1], [102, -1]),
        "b": of_device([2, 0], [2, 0], [2, 0], [101, 0], [101, 0], [101, 0]),
        "c": of_device([1, s], [1, s], [1, s], [101, 3], [101, 3], [101, 3]),
        "d": of_device(*[[1, 9]] * 9, [101, 40], [101, 40]),
    }
    mean, median = (
        GcaServer(**GCA | {"clustering": ClusteringSpec("kmeans", 2)}, centroid=which).aggregate(1, given)  # type: ignore[arg-type]
        for which in ("mean", "geometric_median")
    )
    near, far = sorted(median.broadcast["centroids"].tolist())
    np.testing.assert_allclose(near, [1, s], atol=1e-6)
    np.testing.assert_allclose(far, [101, 0], atol=1e-6)  # (101, 0) twice and (101, 3)
    assert min(mean.broadcast["centroids"].tolist())[1] == pytest.approx((81 + 3 * s) / 18, abs=1e-5)
    assert sorted(median.broadcast["support"]) == sorted(mean.broadcast["support"])


def test_codes_that_the_pool_dropped_have_no_vote_and_shift_none() -> None:
    spec = ClusteringSpec("kmeans", 1, norm_bound=50.0)
    given = {"a": of_device([900, 0], [0, 0], [0, 0], [0, 0]), "b": of_device([1, 0], [1, 0], [1, 0]),
             "c": of_device([5, 0], [5, 0], [5, 0])}  # fmt: skip
    method = GcaServer(**GCA | {"clustering": spec}, centroid="geometric_median")  # type: ignore[arg-type]
    np.testing.assert_allclose(method.aggregate(1, given).broadcast["centroids"], [[1, 0]], atol=1e-6)


def test_one_device_in_five_moves_a_centroid_by_the_others_spread_at_most() -> None:
    rng = np.random.default_rng(4)
    given = {name: of_device(*rng.normal(size=(30, 2)).tolist()) for name in "abcd"}
    pulled = given | {"e": of_device(*(rng.normal(size=(30, 2)) + 1000).tolist())}
    one = {"clustering": ClusteringSpec("kmeans", 1)}
    centre = [GcaServer(**GCA | one, centroid=which).aggregate(1, pulled).broadcast["centroids"][0]  # type: ignore[arg-type]
              for which in ("mean", "geometric_median")]  # fmt: skip
    assert np.linalg.norm(centre[0]) > 250 and np.linalg.norm(centre[1]) < 1


def test_the_geometric_median_is_off_unless_asked_for() -> None:
    assert server_method(load_study("paper/magic")).centroid == "mean"  # type: ignore[attr-defined]
    chosen = load_study("paper/magic", {"clustering.centroid": "geometric_median"})
    assert server_method(chosen).centroid == "geometric_median"  # type: ignore[attr-defined]
