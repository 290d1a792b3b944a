"""From a study's configuration to what is run: the plan, the server half of the method, a round's local work."""

import math
import os

from broker_server.methods.base import ServerMethod
from broker_server.methods.coded import coded
from broker_server.methods.coordinate_median import CoordinateMedianServer
from broker_server.methods.dp_fedavg import DpFedAvgServer
from broker_server.methods.fedavg import FedAvgServer
from broker_server.methods.fednova import FedNovaServer
from broker_server.methods.fedprox import FedProxServer
from broker_server.methods.gca import GcaServer
from broker_server.methods.trimmed_mean import TrimmedMeanServer
from broker_server.plan import RunPlan
from edge_client.errors import ConfigError
from edge_client.methods.base import Epochs
from edge_client.methods.registry import method
from edge_client.methods.single import Single
from sim.config.presets import clustering_spec
from sim.config.study import Study


def run_plan(study: Study, name: str, input_dim: int | None = None, join_s: float | None = None) -> RunPlan:
    """Return the plan of one run under this name; each call is an incarnation of its own.

    `input_dim` is the width of a record where that is known, `join_s` how long to wait for devices where that is not
    the study's `wait_seconds`.

    A model on pooled records is one device, whose name says so.
    """
    return RunPlan(
        run=name, incarnation=os.urandom(4).hex(), method=study.method, seed=study.seed, rounds=study.rounds,
        hyper=study.training, participation=study.participation.fraction,
        over_selection=study.participation.over_selection,
        devices=1 if study.method == "centralized" else study.devices,
        minimum_devices=study.minimum_devices,
        patience_s=study.participation.wait_seconds, deadline_s=study.participation.deadline,
        deadline_limit_s=study.participation.deadline_limit,
        quorum=study.participation.quorum, grace=study.participation.grace, input_dim=input_dim, join_s=join_s,
        rubbish_limit=study.participation.rubbish_limit, message_limit=study.participation.message_limit,
        instance=os.urandom(4).hex(),
    )  # fmt: skip


def server_method(study: Study) -> ServerMethod:
    """Return the server half of the study's method with its codecs; raises `ConfigError` for one that has none."""
    return coded(_method(study), study.training)


def _method(study: Study) -> ServerMethod:
    hyper, seed = study.training, study.seed
    match study.method:
        case "gca":
            asked = study.clustering
            return GcaServer(
                hyper.latent_dim, hyper.upload_fraction, clustering_spec(study), seed, asked.warm_start,
                device_quota=asked.device_quota, minimum_devices=asked.minimum_devices_per_centroid,
                centroid=asked.centroid, norm_limit=asked.norm_limit,
            )  # fmt: skip
        case "fedavg" | "fedprox" if study.aggregation.rule == "median":
            return CoordinateMedianServer(hyper, seed)
        case "fedavg" | "fedprox" if study.aggregation.rule == "trimmed_mean":
            return TrimmedMeanServer(hyper, seed, trim=study.aggregation.trim)
        case "fedavg":
            return FedAvgServer(hyper, seed)
        case "fedprox":
            return FedProxServer(hyper, seed)
        case "fednova":
            return FedNovaServer(hyper, seed)
        case "dp_fedavg":
            clip = study.privacy.clip_norm
            norm = math.inf if clip == "off" else clip
            return DpFedAvgServer(hyper, seed, clip_norm=norm, noise_multiplier=study.privacy.noise_multiplier)
    raise ConfigError(f"method: {study.method!r} has no server; run it with `gca simulate`")


def local_work(study: Study) -> Epochs:
    """Return the local epochs of a round."""
    if study.is_local:
        return Single().epochs(study.training)
    return method(study.method).epochs(study.training)
