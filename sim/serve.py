"""`gca server`: one run for devices on real machines, against any broker."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker_server.plan import RunPlan
from broker_server.records import Outcome
from broker_server.server import Server
from broker_server.store import StudyStore
from edge_client.clock import RealClock
from edge_client.errors import GcaError
from edge_client.offload import into
from edge_client.transport.mqtt import Endpoint, connector
from sim.config import Study, dump
from sim.emulation.journal import Display, Journal
from sim.run_plan import server_method


def serve_run(study: Study, plan: RunPlan, where: Endpoint, directory: Path, display: Display) -> Outcome:
    """Wait for the study's devices, run its rounds, and write results into `directory`.

    There is no wire ledger here: that belongs to links, and these are real. Raises `GcaError` if the run fails.
    """
    (directory / "study.toml").write_text(dump(study))
    with StudyStore.create(directory) as store:
        number = store.begin_run(plan, study.devices, study.dataset)
        journal, began = Journal(store, number, display), time.monotonic()
        outcome = Outcome(False, 0, 0.0, "interrupted")

        async def serve() -> Outcome:
            with ThreadPoolExecutor(1) as pool:
                method = server_method(study)
                return await Server(plan, method, connector(where), RealClock(), journal, into(pool)).serve()

        try:
            outcome = asyncio.run(serve())
        except GcaError as error:
            outcome = Outcome(False, 0, time.monotonic() - began, str(error))
            raise
        finally:
            journal.close()
            store.finish(number, outcome, time.monotonic() - began, None)
    if not outcome.completed:
        raise GcaError(f"run {plan.run} ended early: {outcome.reason}")
    return outcome
