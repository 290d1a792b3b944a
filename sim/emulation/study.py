"""A study from its configuration to its directory: data, shards, the run, and what is written down of it."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from broker_server.plan import RunPlan
from broker_server.study import results
from broker_server.study.records import Outcome
from broker_server.study.results import RunRow
from broker_server.study.store import StudyStore
from edge_client.atomic import write_atomically
from edge_client.errors import ConfigError, GcaError, in_words
from edge_client.model.choice import dense_engine
from edge_client.seeds import digest
from edge_client.stopping import until_told_to_stop
from edge_client.transport.endpoint import Endpoint
from sim import guarantee
from sim.config.devices import device_boards, device_links, device_names
from sim.config.run_plan import run_plan
from sim.config.study import Study, dump
from sim.data import Dataset, load
from sim.emulation import resume
from sim.emulation.journal import Display, Journal
from sim.emulation.runs import Federation, Finished
from sim.emulation.states import Retention, drop_states
from sim.emulation.workload import Shard, check_machine, records_digest, write_shards
from sim.fleet.federation import run as run_as_tasks
from sim.fleet.loop import VirtualLoop
from sim.fleet.recording import Recording, recording
from sim.local import run as run_alone
from sim.studies import STUDY, make_directory, read_study, run_name, telling_where


@dataclass(frozen=True)
class Around:
    """What a run has around it, and no result depends on: who sees it, the order in which its devices are started
    (None: by name), and the real broker to use (None: our own)."""

    display: Display
    order: Sequence[int] | None = None
    broker: Endpoint | None = None


@dataclass(frozen=True)
class Workload:
    """The devices' records, the test set, and the width of a record."""

    shards: tuple[Shard, ...]
    test: Path
    width: int


def run_study(study: Study, directory: Path, display: Display, data_dir: Path | None = None,
              order: Sequence[int] | None = None, broker: Endpoint | None = None) -> int:  # fmt: skip
    """Run a study and leave its results in `directory`, which must be new or empty; return the width of a record.

    Everything that can be refused is refused before the first process starts. `order` and `broker`: see `Around`.
    Raises `GcaError` if the run fails: what was recorded until then stays readable, and `resume_study` goes on there.
    """
    device_links(study), device_boards(study)
    check_machine(study)
    dataset = load(study.dataset, data_dir, seed=study.seed)
    make_directory(directory)
    write_atomically(directory / STUDY, dump(study).encode(), "study")
    with resume.held(directory):
        return _begin(study, directory, dataset, Around(display, order, broker))


def resume_study(directory: Path, display: Display, data_dir: Path | None = None,
                 order: Sequence[int] | None = None, broker: Endpoint | None = None) -> int:  # fmt: skip
    """Go on with a study whose program was stopped, at whatever instant; return the width of a record.

    It ends in the state in which it would have ended without the stop. A completed one is left as it is. Raises
    `GcaError` if the folder holds nothing to go on with, or if the run fails.
    """
    study, around = read_study(directory), Around(display, order, broker)
    with resume.held(directory):
        if not resume.has_begun(directory):
            check_machine(study)
            dataset = load(study.dataset, data_dir, seed=study.seed)
            resume.clear(directory)
            return _begin(study, directory, dataset, around)
        if not (directory / "shards").is_dir():
            mend = f"if devices of their own took part in it: gca server --resume {directory} --broker URL"
            raise ConfigError(f"{directory}: holds no records of emulated devices; go on with it, {mend}")
        workload = Workload(*resume.written_shards(study, directory))
        with StudyStore.open(directory, writable=True) as store:
            row = results.last_run(store)
            if row.completed:
                display.note(f"{directory} is complete: nothing is left to do")
                drop_states(directory)
                return workload.width
            check_machine(study)
            (directory / "models").mkdir(exist_ok=True)
            _go_on(study, directory, workload, store, row, around)
    return workload.width


def _begin(study: Study, directory: Path, dataset: Dataset, around: Around) -> int:
    shards, test = write_shards(study, dataset, directory / "shards")
    workload = Workload(shards, test, dataset.input_dim)
    plan = _plan(study, run_name(directory), workload.width)
    with StudyStore.create(directory) as store:
        number = store.begin_run(plan, plan.devices, study.dataset)
        journal = Journal(store, number, around.display)
        for remark in guarantee.remarks(study, max(shard.samples for shard in shards)):
            journal.note(f"defences: {remark}")
        _carry_out(study, plan, directory, workload, store, number, journal, around)
    return workload.width


def _go_on(study: Study, directory: Path, workload: Workload, store: StudyStore, row: RunRow, around: Around) -> None:
    """Go on with a run after the last round that is whole."""
    start = resume.find_start(study, directory, store, row.run)
    plan = replace(_plan(study, row.name.rpartition(".")[0], workload.width), start=start)
    store.rewind(row.run, start.completed)
    resume.forget_later(directory, start.completed)
    waited = row.seconds_wall or (start.seconds if study.clock == "real" else 0.0)
    journal = Journal(store, row.run, around.display)
    where = f"goes on after round {start.completed}" if start.completed else "begins anew: no round was whole"
    journal.note(f"resumed: the study {where}")
    _carry_out(study, plan, directory, workload, store, row.run, journal, around, waited)


def _plan(study: Study, name: str, width: int) -> RunPlan:
    plan = run_plan(study, name, width)
    if study.clock == "virtual":  # where nothing may depend on chance, the name of the incarnation may not either
        plan = replace(plan, incarnation=f"{digest(study.seed, 'incarnation', size=4):08x}")
    return plan


def _carry_out(study: Study, plan: RunPlan, directory: Path, workload: Workload, store: StudyStore, number: int,
               journal: Journal, around: Around, waited: float = 0.0) -> None:  # fmt: skip
    """Run all rounds that are left. A person has `waited` seconds already, in earlier lives of the run."""
    journal.reported = Retention(directory, device_names(study)).reported
    if study.compute != "synthetic" and plan.hyper.model == "dense":
        journal.trained_by(dense_engine())
    federation = Federation(study, plan, workload.shards, workload.test, directory, around.broker, around.order)
    began = time.monotonic() - waited
    finished = Finished(Outcome(False, 0, 0.0, "interrupted"), None)
    with telling_where(directory):
        try:
            virtual = study.clock == "virtual" and not study.is_local
            with (
                _recording(study, plan, directory, workload, journal) as record,
                asyncio.Runner(loop_factory=partial(VirtualLoop, plan.start.seconds) if virtual else None) as loop,
            ):
                finished = loop.run(_run(replace(federation, recording=record), journal))
                if record is not None and finished.outcome.completed:
                    record.complete()
        except Exception as error:
            finished = Finished(Outcome(False, 0, time.monotonic() - began, in_words(error)), None)
            raise
        finally:
            journal.close()
            store.finish(number, finished.outcome, time.monotonic() - began, finished.state_sha256)
    if not finished.outcome.completed:
        raise GcaError(f"the run ended early: {finished.outcome.reason}; see {directory}")
    drop_states(directory)


def _recording(
    study: Study, plan: RunPlan, directory: Path, workload: Workload, journal: Journal
) -> AbstractContextManager[Recording | None]:
    """Open the recording of a study that may be replayed."""
    if study.compute != "replay":
        return nullcontext()
    if plan.start.completed:  # of the rounds before the stop nothing is recorded
        journal.note("training goes on and is not recorded: the study was stopped before")
        return nullcontext()
    return recording(study, records_digest(workload.shards, workload.test), directory, journal.note)


async def _run(federation: Federation, journal: Journal) -> Finished:
    """Run as processes or as tasks, or without a network."""
    study = federation.study
    if study.is_local or study.as_tasks:
        return await until_told_to_stop((run_alone if study.is_local else run_as_tasks)(federation, journal))
    from sim.emulation.federation import run as run_as_processes

    return await until_told_to_stop(run_as_processes(federation, journal))
