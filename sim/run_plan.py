"""From a study's configuration to what the server runs: the plan and the server half of the method."""

import os

from broker_server.clustering import ClusteringSpec
from broker_server.methods.gca import GcaServer
from broker_server.plan import RunPlan
from sim.config import Study


def run_plan(study: Study, name: str) -> RunPlan:
    """Return the plan of one run under this name; each call is an incarnation of its own."""
    return RunPlan(
        run=name, incarnation=os.urandom(4).hex(), method=study.method, seed=study.seed, rounds=study.rounds,
        hyper=study.training, participation=study.participation.fraction, devices=study.devices,
        minimum_devices=study.minimum_devices,
        patience_s=study.participation.wait_seconds, deadline_s=study.participation.deadline,
    )  # fmt: skip


def server_method(study: Study) -> GcaServer:
    """Return the server half of the study's method."""
    chosen = study.clustering
    spec = ClusteringSpec(
        chosen.algorithm, chosen.components, covariance=chosen.covariance, regularisation=chosen.regularisation,
        initialisations=chosen.restarts, max_iterations=chosen.max_iterations, tolerance=chosen.tolerance,
        temperature=chosen.temperature, batch_size=chosen.batch_size,
    )  # fmt: skip
    return GcaServer(study.training.latent_dim, study.training.upload_fraction, spec, study.seed, chosen.warm_start)
