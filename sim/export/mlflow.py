"""Studies as runs of MLflow, by its own client: in a database of a folder, or at a tracking server."""

import logging
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from edge_client.errors import EnvironmentFault
from sim.export.series import Exported

EXPERIMENT, DATABASE = "gca", "mlflow.db"
MOST = 1000
"""Metrics in one request; a server refuses more."""
VALUE = 6000
"""Characters of a parameter's value."""


def write(studies: Sequence[Exported], where: str) -> list[str]:
    """Write each study as a run of the experiment "gca"; return one line for each.

    `where` is a folder, or the address of a tracking server. A study that is there already is not written twice.

    Raises:
        EnvironmentFault: the place cannot be written, or holds a study already.
        ModuleNotFoundError: MLflow is not installed.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an export is no reason to tell a third party
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own keep a person waiting for minutes
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    for name in ("mlflow", "alembic"):  # they tell how they set up their tables
        logging.getLogger(name).setLevel(logging.WARNING)
    local = "://" not in where
    try:
        if local:
            Path(where).mkdir(parents=True, exist_ok=True)
        client = MlflowClient(tracking_uri=address(where))
        found = client.get_experiment_by_name(EXPERIMENT)
        files = (Path(where).absolute() / "artifacts").as_uri() if local else None
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT, files)
        for one in studies:
            if client.search_runs([experiment], f"tags.run = '{one.run}'"):
                raise EnvironmentFault(
                    f"{where}: holds run {one.run} already; delete it there, or choose another place"
                )
        told = [f"{where}: {one.name}, run {_write(client, experiment, one)}" for one in studies]
        return [*told, f"look at it: mlflow ui --backend-store-uri {address(where)}"] if local else told
    except (MlflowException, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise EnvironmentFault(f"{where}: {reason}; give a folder that can be written, or a server's address") from None


def address(where: str) -> str:
    """Return MLflow's address of a folder; an address stays what it is."""
    return where if "://" in where else f"sqlite:///{Path(where).absolute() / DATABASE}"


def _write(client: Any, experiment: str, one: Exported) -> str:
    from mlflow.entities import Metric, Param, RunTag

    began = _milliseconds(one.began)
    tags = {"run": one.run, "study": str(one.directory)}
    run = client.create_run(experiment, start_time=began, run_name=one.name, tags=tags).info.run_id
    params = [Param(key, value[:VALUE]) for key, value in one.settings.items()]
    client.log_batch(run, params=params, tags=[RunTag("completed", str(one.completed))])
    metrics = [
        *(Metric(p.name, p.value, _milliseconds(one.began + p.seconds), p.step) for p in one.scalars),
        *(Metric(name, value, began, 0) for name, value in one.totals.items()),
    ]
    for some in _groups(metrics, MOST):
        client.log_batch(run, metrics=some)
    ended = began + _milliseconds(one.totals.get("total_seconds", 0.0))
    client.set_terminated(run, "FINISHED" if one.completed else "FAILED", ended)
    return str(run)


def _groups(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
