"""A study from its configuration to its directory: data, shards, the run, and what is written down of it."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from broker_server.records import Outcome
from broker_server.store import StudyStore
from edge_client.errors import GcaError, in_words
from edge_client.seeds import digest
from edge_client.stopping import until_told_to_stop
from edge_client.transport.mqtt import Endpoint
from sim.config import Study, dump
from sim.data import load
from sim.devices import device_boards, device_links
from sim.emulation.federation import Federation, Finished, run
from sim.emulation.journal import Display, Journal
from sim.emulation.workload import check_machine, write_shards
from sim.fleet.federation import run as run_as_tasks
from sim.fleet.loop import VirtualLoop
from sim.local import run as run_alone
from sim.run_plan import run_plan
from sim.studies import make_directory, run_name, telling_where


def run_study(study: Study, directory: Path, display: Display, data_dir: Path | None = None,
              order: Sequence[int] | None = None, broker: Endpoint | None = None) -> int:  # fmt: skip
    """Run a study and leave its results in `directory`, which must be new or empty; return the width of a record.

    Everything that can be refused is refused before the first process starts. `order` starts the devices in another
    order than by name; the results do not depend on it.
    `broker` is the real one to use, None for our own. Raises `GcaError` if the run fails: what was recorded until
    then stays readable.
    """
    device_links(study), device_boards(study)
    check_machine(study)
    dataset = load(study.dataset, data_dir, seed=study.seed)
    make_directory(directory)
    shards, test = write_shards(study, dataset, directory / "shards")
    (directory / "study.toml").write_text(dump(study))

    plan = run_plan(study, run_name(directory), dataset.input_dim)
    if study.clock == "virtual":  # where nothing may depend on chance, the name of the incarnation may not either
        plan = replace(plan, incarnation=f"{digest(study.seed, 'incarnation', size=4):08x}")
    with StudyStore.create(directory) as store, telling_where(directory):
        number = store.begin_run(plan, plan.devices, study.dataset)
        journal = Journal(store, number, display)
        began = time.monotonic()
        federation = Federation(study, plan, shards, test, directory, broker, order)
        finished = Finished(Outcome(False, 0, 0.0, "interrupted"), None)
        try:
            virtual = study.clock == "virtual" and not study.is_local
            with asyncio.Runner(loop_factory=VirtualLoop if virtual else None) as loop:
                finished = loop.run(_run(federation, journal))
        except Exception as error:
            finished = Finished(Outcome(False, 0, time.monotonic() - began, in_words(error)), None)
            raise
        finally:
            journal.close()
            store.finish(number, finished.outcome, time.monotonic() - began, finished.state_sha256)
    if not finished.outcome.completed:
        raise GcaError(f"the run ended early: {finished.outcome.reason}; see {directory}")
    return dataset.input_dim


async def _run(federation: Federation, journal: Journal) -> Finished:
    """Run as processes or as tasks, or without a network."""
    study = federation.study
    chosen = run_alone if study.is_local else run_as_tasks if study.as_tasks else run
    return await until_told_to_stop(chosen(federation, journal))
