"""Whatever is uploaded: finite centroids inside the data, supports that add up, the same bits, or a typed error."""

import sys
from subprocess import run

import msgspec
import numpy as np
import pytest
import torch
from clustering.nasty_codes import Upload, blobs, uploads
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from broker_server.clustering import Clustering, ClusteringSpec, cluster
from edge_client.errors import ConfigError, EnvironmentFault, ProtocolError

CASES = uploads()
ALGORITHMS = ["gmm", "gmm_diag", "kmeans", "soft_kmeans", "minibatch_kmeans"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def settings_for(algorithm: str, upload: Upload) -> ClusteringSpec:
    if algorithm == "gmm_diag" or (algorithm == "gmm" and upload.wide):
        return msgspec.structs.replace(ClusteringSpec.vision("gmm", upload.components), initialisations=5)
    return ClusteringSpec.tabular(algorithm, upload.components)


def bits(result: Clustering) -> tuple[bytes, ...]:
    return result.centroids.tobytes(), result.support.tobytes(), result.labels.tobytes()


def rows_as_set(centroids: np.ndarray) -> np.ndarray:
    return centroids[np.lexsort(centroids.T[::-1])]


def check(result: Clustering, kept: np.ndarray, components: int) -> None:
    assert result.centroids.dtype == result.support.dtype == np.float64
    assert np.isfinite(result.centroids).all()
    assert 1 <= len(result.centroids) == len(result.support) <= components
    assert result.support.sum(dtype=float) == pytest.approx(len(kept), rel=1e-6)
    assert (result.support >= 0.5).all()
    assert (result.centroids >= kept.min(axis=0)).all() and (result.centroids <= kept.max(axis=0)).all()
    assert result.labels.shape == (len(kept),)
    assert result.labels.min() >= 0 and result.labels.max() < len(result.centroids)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", CASES)
def test_every_nasty_upload(name: str, algorithm: str) -> None:
    upload = CASES[name]
    spec = settings_for(algorithm, upload)
    result = cluster(upload.codes, spec, seed=3)
    check(result, upload.usable, upload.components)
    assert result.diagnostics.dropped == (len(upload.codes) - len(upload.usable),)
    assert result.diagnostics.fitted_components == min(upload.components, len(np.unique(upload.usable, axis=0)))
    assert bits(cluster(upload.codes, spec, seed=3)) == bits(result)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["one_nan", "one_inf", "mostly_nan", "outlier_1e20", "outlier_3e38"])
def test_a_bad_row_changes_nothing(name: str, algorithm: str) -> None:
    upload = CASES[name]
    spec = settings_for(algorithm, upload)
    assert bits(cluster(upload.codes, spec, 3)) == bits(cluster(upload.usable, spec, 3))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_order_of_devices_changes_only_the_order_of_labels(algorithm: str) -> None:
    codes = blobs(600, 8, 12, seed=1).astype(np.float32)
    codes[100:140, 0] = codes[7, 0]  # ties in the first dimension must not fall back on arrival order
    codes[300] = np.nan
    devices = [codes[:130], codes[130:130], codes[130:411], codes[411:]]
    spec = settings_for(algorithm, Upload(codes, 12))
    one = cluster(devices, spec, 5)
    other = cluster([devices[i] for i in (3, 1, 0, 2)], spec, 5)
    assert one.diagnostics.dropped == (0, 0, 1, 0) and other.diagnostics.dropped == (0, 0, 0, 1)
    assert bits(one)[:2] == bits(other)[:2]
    lengths = [189, 130, 280]  # kept rows of devices 3, 0, 2
    last, first, middle = np.split(other.labels, np.cumsum(lengths)[:-1])
    np.testing.assert_array_equal(np.concatenate([first, middle, last]), one.labels)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_translation_moves_the_centroids_by_exactly_that(algorithm: str) -> None:
    """Codes on a grid of 2^-6 stay exact in float32 at 1e5, so only the clustering could lose digits."""
    codes = (np.round(blobs(400, 6, 8, seed=2) * 64) / 64).astype(np.float32)
    spec = settings_for(algorithm, Upload(codes, 8))
    here, there = cluster(codes, spec, 1), cluster(codes + np.float32(1e5), spec, 1)
    assert bits(here)[1:] == bits(there)[1:]
    np.testing.assert_allclose(there.centroids - 1e5, here.centroids, rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_float64_uploads_give_the_float32_centroids(algorithm: str) -> None:
    codes = np.random.default_rng(0).standard_normal((500, 6)) + 20 * np.eye(6)[np.arange(500) % 6]
    spec = settings_for(algorithm, Upload(codes.astype(np.float32), 6))
    single, double = cluster(codes.astype(np.float32), spec, 1), cluster(codes, spec, 1)
    np.testing.assert_allclose(rows_as_set(single.centroids), rows_as_set(double.centroids), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ALGORITHMS),
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 30), st.integers(1, 4)),
        elements=st.one_of(st.sampled_from([0.0, 1.0, -1.0, 1e6, 1e-30]), st.floats(width=32)),
    ),
    st.integers(1, 12),
)
def test_any_floats_at_all(algorithm: str, codes: np.ndarray, components: int) -> None:
    spec = settings_for(algorithm, Upload(codes, components))
    try:
        result = cluster(codes, spec, seed=1)
    except ProtocolError:
        finite = codes[np.isfinite(codes).all(axis=1)].astype(float)
        assert not len(finite) or (np.linalg.norm(finite - np.median(finite, axis=0), axis=1) > 1e9).all()
        return
    finite = codes[np.isfinite(codes).all(axis=1)].astype(float)
    near = np.linalg.norm(finite - np.median(finite, axis=0), axis=1) <= spec.norm_bound
    check(result, finite[near].astype(np.float32), components)
    assert bits(cluster(codes[::-1], spec, seed=1))[:2] == bits(result)[:2]


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (np.zeros((0, 16), np.float32), "no usable code"),
        (np.full((5, 4), np.nan, np.float32), "5 not finite"),
        (np.zeros((3, 0), np.float32), "no usable code"),
        ([], "no upload"),
        ([np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)], "upload 1 has width 4"),
        (np.zeros(7, np.float32), "upload 0 is not a matrix"),
        (np.zeros((4, 4), np.int32), "upload 0 is not a matrix"),
    ],
)
def test_what_cannot_be_clustered_is_refused_by_name(codes: object, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        cluster(codes, ClusteringSpec.tabular("gmm", 3), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field", [{"components": 0}, {"tolerance": -1.0}, {"algorithm": "dbscan"}, {"temperature": 0.0}]
)
def test_settings_out_of_range_name_the_field(field: dict[str, object]) -> None:
    spec = msgspec.structs.replace(ClusteringSpec.tabular("kmeans", 3), **field)
    with pytest.raises(ConfigError, match=next(iter(field))):
        cluster(np.eye(4, dtype=np.float32), spec, 0)


@pytest.mark.parametrize("centroids", [np.zeros((3, 5)), np.full((3, 4), np.nan), np.zeros((0, 4)), np.zeros(4)])
def test_centroids_of_another_pool_are_refused(centroids: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="initial centroids"):
        cluster(np.eye(4, dtype=np.float32), ClusteringSpec.tabular("kmeans", 3), 0, initial_centroids=centroids)


def test_the_norm_bound_drops_what_lies_beyond_it() -> None:
    codes = np.concatenate([np.eye(4), [[0, 0, 0, 50.0]]]).astype(np.float32)
    spec = msgspec.structs.replace(ClusteringSpec.tabular("kmeans", 4), norm_bound=10.0)
    assert cluster([codes[:2], codes[2:]], spec, 0).diagnostics.dropped == (0, 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without CUDA")
def test_cuda_that_is_not_there_is_a_fault_and_auto_leaves_a_note() -> None:
    codes = np.random.default_rng(0).standard_normal((3000, 8)).astype(np.float32)
    asked = msgspec.structs.replace(ClusteringSpec.tabular("kmeans", 200), max_iterations=2)
    with pytest.raises(EnvironmentFault, match="cuda"):
        cluster(codes, msgspec.structs.replace(asked, device="cuda"), 0)
    large = cluster(codes, asked, 0).diagnostics
    assert large.device == "cpu" and "no CUDA device" in large.device_note
    assert cluster(codes, msgspec.structs.replace(asked, device="cpu"), 0).diagnostics.device_note == ""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_global_state_is_read_or_changed(algorithm: str) -> None:
    upload = CASES["plain"]
    spec = settings_for(algorithm, upload)
    expected = bits(cluster(upload.codes, spec, 3))
    torch.manual_seed(99)
    np.random.seed(99)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert bits(cluster(upload.codes, spec, 3)) == expected
    finally:
        torch.set_float32_matmul_precision(precision)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)
    assert torch.get_num_threads() == threads
    assert bits(cluster(upload.codes, spec, 4)) != expected


def test_the_uploads_are_not_written_to() -> None:
    codes = CASES["one_nan"].codes.copy()
    codes.flags.writeable = False
    cluster([codes[:200], codes[200:]], ClusteringSpec.tabular("gmm", 5), 0)
    np.testing.assert_array_equal(codes, CASES["one_nan"].codes)


def test_settings_load_without_torch_and_clustering_without_scikit_learn() -> None:
    program = (
        "import sys, numpy; from broker_server.clustering import ClusteringSpec, cluster\n"
        "assert 'torch' not in sys.modules\n"
        "cluster(numpy.eye(4, dtype='float32'), ClusteringSpec.tabular('gmm', 2), 0)\n"
        "assert 'torch' in sys.modules and 'sklearn' not in sys.modules\n"
    )
    run([sys.executable, "-c", program], check=True, timeout=60)
