"""`gca server`: one run for devices on real machines, against any broker."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from broker_server.plan import RunPlan
from broker_server.rounds.rivals import make_sure_of_being_alone
from broker_server.server import Server
from broker_server.study.records import Outcome
from broker_server.study.results import RunRow, last_run
from broker_server.study.start import Start, load_start
from broker_server.study.store import StudyStore
from edge_client.atomic import write_atomically
from edge_client.clock import RealClock
from edge_client.errors import ConfigError, GcaError, in_words
from edge_client.offload import into
from edge_client.stopping import until_told_to_stop
from edge_client.transport.endpoint import Endpoint
from edge_client.transport.mqtt import connector
from sim.config.run_plan import run_plan, server_method
from sim.config.study import Study, dump
from sim.emulation.journal import Display, Journal
from sim.emulation.resume import clear, has_begun, held
from sim.studies import STUDY, make_directory, read_study, telling_where

if TYPE_CHECKING:
    from sim.metrics import Metrics

RUN_NAME = re.compile(r"(.+)\.([0-9a-f]{8})(?:\.([0-9]+))?")
"""A run as messages name it: its name, incarnation and life."""


@dataclass(frozen=True)
class Around:
    """What a run has around it, and no result depends on: the broker, who sees it, how long the devices are waited for,
    and where (host, port) Prometheus may ask for figures."""

    broker: Endpoint
    display: Display
    wait_s: float
    metrics_at: tuple[str, int] | None = None


def serve_run(study: Study, run: str, directory: Path, around: Around, input_dim: int | None = None) -> int:
    """Wait for the study's devices, run its rounds, and write results into `directory`; return the width of a record.

    There is no wire ledger here: that belongs to links, and these are real. Raises `GcaError` if the run fails; when
    it is told to stop, the devices are told too. `input_dim` is the width of a record where that is known.
    """
    plan = run_plan(study, run, input_dim, around.wait_s)
    _make_sure_of_being_alone(plan, around)
    make_directory(directory)
    write_atomically(directory / STUDY, dump(study).encode(), "study")
    with held(directory):
        return _begin(study, plan, directory, around)


def resume_run(directory: Path, around: Around, run: str | None = None, input_dim: int | None = None) -> int:
    """Go on with a run whose server was stopped, at whatever instant, after its last finished round; return the width
    of a record.

    Devices that are still there stay, and bring what an open round lacks once more. A completed run is left as it is.
    `run` is needed where the server was stopped before it had noted its name, and `input_dim`, if it is to be that and
    no other, where it was before the end of round 1. Raises `GcaError` if the folder holds nothing to go on with, or if
    the run fails.
    """
    study = read_study(directory)
    if (directory / "shards").is_dir():  # written for devices of this machine: no other would have such records
        raise ConfigError(f"{directory}: its devices are emulated; go on with it: gca simulate --resume {directory}")
    with held(directory):
        if not has_begun(directory):
            if run is None:
                raise ConfigError(f"--run: {directory} does not say it: its server was stopped before the run began")
            plan = run_plan(study, run, input_dim, around.wait_s)
            _make_sure_of_being_alone(plan, around)
            clear(directory)
            return _begin(study, plan, directory, around)
        with StudyStore.open(directory, writable=True) as store:
            row = last_run(store)
            plan = _next_life(study, directory, store, row, run, input_dim, around.wait_s)
            if row.completed:
                around.display.note(f"{directory} is complete: nothing is left to do")
                return plan.input_dim or 0
            _make_sure_of_being_alone(plan, around)
            store.rewind(row.run, plan.start.completed)
            store.begin_life(row.run, plan.name)
            journal = Journal(store, row.run, around.display)
            done = plan.start.completed
            journal.note(f"resumed: the run {f'goes on after round {done}' if done else 'begins anew'}")
            waited = row.seconds_wall or plan.start.seconds  # a server that was killed wrote down its rounds only
            return _carry_out(study, plan, directory, store, row.run, journal, around, waited)


def _make_sure_of_being_alone(plan: RunPlan, around: Around) -> None:
    """Raise `ConfigError`, before anything is written, if another server has this run's name on the broker."""
    asyncio.run(make_sure_of_being_alone(plan, connector(around.broker), RealClock(), str(around.broker)))


def _begin(study: Study, plan: RunPlan, directory: Path, around: Around) -> int:
    with StudyStore.create(directory) as store:
        number = store.begin_run(plan, study.devices, study.dataset)
        return _carry_out(study, plan, directory, store, number, Journal(store, number, around.display), around)


def _next_life(study: Study, directory: Path, store: StudyStore, row: RunRow, run: str | None, input_dim: int | None,
               wait_s: float) -> RunPlan:  # fmt: skip
    """Return the plan of the run's next life: after the last round that is written down, as devices are past it."""
    name, incarnation, number = RUN_NAME.fullmatch(row.name).groups()  # type: ignore[union-attr]
    if run not in (None, name):
        raise ConfigError(f"--run {run}: the run in {directory} is {name}; leave the option out beside --resume")
    ((done,),) = store.rows("SELECT coalesce(max(round), 0) FROM rounds WHERE run = ?", row.run)
    start = load_start(directory, done) if done else Start()
    if start.input_dim is not None and input_dim not in (None, start.input_dim):
        raise ConfigError(f"--features {input_dim}: records of the run in {directory} have {start.input_dim}")
    plan = run_plan(study, name, start.input_dim or input_dim, wait_s)
    return replace(plan, incarnation=incarnation, life=int(number or 0) + 1, start=start)


def _carry_out(study: Study, plan: RunPlan, directory: Path, store: StudyStore, number: int, journal: Journal,
               around: Around, waited: float = 0.0) -> int:  # fmt: skip
    """Run all rounds that are left. A person has `waited` seconds already, in earlier lives of the server."""
    method, began = server_method(study), time.monotonic() - waited
    outcome, width = Outcome(False, 0, 0.0, "interrupted"), None

    async def serve() -> tuple[Outcome, int | None]:
        with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
            metrics = _metrics(plan, journal) if around.metrics_at else None
            server = Server(plan, method, connector(around.broker), RealClock(), metrics or journal, into(pool))
            if metrics is not None and around.metrics_at is not None:
                from sim.metrics import served

                metrics.watch(server.coordinator.members)  # first: whoever asks at once gets the whole page
                stack.enter_context(served(metrics, *around.metrics_at))
            return await until_told_to_stop(server.serve()), server.coordinator.members.input_dim or plan.input_dim

    with telling_where(directory):
        try:
            outcome, width = asyncio.run(serve())
        except Exception as error:
            outcome = Outcome(False, 0, time.monotonic() - began, in_words(error))
            raise
        finally:
            journal.close()
            store.finish(number, outcome, time.monotonic() - began, None)
    if not outcome.completed or width is None:
        raise GcaError(f"run {plan.run} ended early: {outcome.reason}; go on with it: gca server --resume {directory}")
    return width


def _metrics(plan: RunPlan, journal: Journal) -> "Metrics":
    """Stand between server and journal."""
    from sim.metrics import Metrics

    return Metrics(plan, journal)
