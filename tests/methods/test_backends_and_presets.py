"""GCA with each clustering backend and with uniform weights, over the broker in memory; the paper's presets."""

from typing import get_args

import numpy as np
import pytest
from methods.runs import HYPER, SEED, Run, bits
from msgspec.structs import replace as with_fields

from broker_server.clustering import ClusteringSpec
from broker_server.methods.gca import GcaServer
from edge_client.methods.registry import method as device_half
from sim.config.presets import TABULAR, VISION, Preset, clustering_spec, preset
from sim.config.study import Algorithm, Method, Study, load_study

BACKENDS = get_args(Algorithm)


async def test_every_backend_aligns_and_each_in_its_own_way() -> None:
    found = set()
    for algorithm in BACKENDS:
        run = Run("gca")
        # One start each: the best of many would be the same few clusters for the K-means family.
        run.spy.half = GcaServer(HYPER.latent_dim, 0.5, ClusteringSpec(algorithm, 12, initialisations=1), SEED)
        states = await run.states()
        assert all(np.isfinite(state.parameters).all() for state in states.values())
        for broadcast in run.spy.broadcasts.values():
            assert broadcast["support"].sum() == pytest.approx(4 * 20, rel=1e-5)  # half of 40 records on 4 devices
        found.add(bits(states)["a"])
    assert len(found) == len(BACKENDS) == 4


async def test_uniform_weights_change_the_alignment_and_nothing_before_it() -> None:
    inverse = Run("gca", rounds=1)
    uniform = Run("gca", rounds=1, hyper=with_fields(HYPER, weighting="uniform"))
    first, second = await inverse.states(), await uniform.states()
    for name, array in inverse.spy.broadcasts[1].items():
        assert array.tobytes() == uniform.spy.broadcasts[1][name].tobytes()
    assert bits(first) != bits(second)


def test_the_papers_presets() -> None:
    assert Preset("full", 1e-6, 1) == TABULAR and Preset("diag", 0.1, 100) == VISION
    images = {"training.model": "convolutional", "training.image": [1, 28, 28], "training.hidden": [128, 128]}
    assert preset(load_study("paper/magic")) == TABULAR and preset(load_study("demo", images)) == VISION


@pytest.mark.parametrize("algorithm", BACKENDS)
def test_what_a_study_leaves_out_is_filled_in_for_its_records(algorithm) -> None:
    images = {"training.model": "convolutional", "training.image": [1, 28, 28], "clustering.algorithm": algorithm}
    study = load_study("paper/magic", {"clustering.algorithm": algorithm})
    bare = Study(dataset="magic", clustering=with_fields(study.clustering, covariance=None, regularisation=None))
    tabular = clustering_spec(bare)
    assert (tabular.covariance, tabular.regularisation) == ("full", 1e-6)
    assert tabular.initialisations == (1 if algorithm == "gmm" else 10)
    assert (tabular.temperature, tabular.batch_size, tabular.max_iterations, tabular.tolerance) == (
        1.0,
        4096,
        200,
        1e-3,
    )
    vision = clustering_spec(with_fields(bare, training=load_study("demo", images).training))
    assert (vision.covariance, vision.regularisation) == ("diag", 0.1)
    assert vision.initialisations == (100 if algorithm == "gmm" else 10)


def test_what_a_study_says_stands() -> None:
    said = {"clustering.covariance": "diag", "clustering.regularisation": 0.0, "clustering.initialisations": 7}
    spec = clustering_spec(load_study("demo", said))
    assert (spec.covariance, spec.regularisation, spec.initialisations) == ("diag", 0.0, 7)


def test_every_federated_method_of_a_study_has_a_device_half() -> None:
    for name in set(get_args(Method)) - {"single", "centralized"}:
        assert device_half(name).stages
