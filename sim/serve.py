"""`gca server`: one run for devices on real machines, against any broker."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from broker_server.plan import RunPlan
from broker_server.records import Outcome
from broker_server.server import Server
from broker_server.store import StudyStore
from edge_client.clock import RealClock
from edge_client.errors import GcaError, in_words
from edge_client.offload import into
from edge_client.stopping import until_told_to_stop
from edge_client.transport.mqtt import Endpoint, connector
from sim.config import Study, dump
from sim.emulation.journal import Display, Journal
from sim.run_plan import server_method
from sim.studies import telling_where

if TYPE_CHECKING:
    from sim.metrics import Metrics


def serve_run(study: Study, plan: RunPlan, where: Endpoint, directory: Path, display: Display, *,
              metrics_at: tuple[str, int] | None = None) -> int:  # fmt: skip
    """Wait for the study's devices, run its rounds, and write results into `directory`; return the width of a record.

    There is no wire ledger here: that belongs to links, and these are real. Raises `GcaError` if the run fails; when
    it is told to stop, the devices are told too. `metrics_at` (host, port) is where Prometheus may ask for figures.
    """
    method = server_method(study)
    (directory / "study.toml").write_text(dump(study))
    with StudyStore.create(directory) as store, telling_where(directory):
        number = store.begin_run(plan, study.devices, study.dataset)
        journal, began = Journal(store, number, display), time.monotonic()
        outcome, width = Outcome(False, 0, 0.0, "interrupted"), None

        async def serve() -> tuple[Outcome, int | None]:
            with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
                metrics = _metrics(stack, plan, journal, metrics_at) if metrics_at else None
                server = Server(plan, method, connector(where), RealClock(), metrics or journal, into(pool))
                if metrics:
                    metrics.watch(server.coordinator.members)
                return await until_told_to_stop(server.serve()), server.coordinator.members.input_dim

        try:
            outcome, width = asyncio.run(serve())
        except Exception as error:
            outcome = Outcome(False, 0, time.monotonic() - began, in_words(error))
            raise
        finally:
            journal.close()
            store.finish(number, outcome, time.monotonic() - began, None)
    if not outcome.completed or width is None:
        raise GcaError(f"run {plan.run} ended early: {outcome.reason}; see {directory}")
    return width


def _metrics(stack: ExitStack, plan: RunPlan, journal: Journal, at: tuple[str, int]) -> "Metrics":
    """Stand between server and journal, and answer there until the stack ends."""
    from sim.metrics import Metrics, served

    metrics = Metrics(plan, journal)
    stack.enter_context(served(metrics, *at))
    return metrics
