"""`single` and `centralized`: training without a network, in threads of this process, written down like any study.

`single`: each device trains on its own records. `centralized`: one model, named "pooled", trains on the records of
all. There are rounds, so that curves compare, but no uploads and no bytes: the ledgers hold nothing. That the pooled
records had to be brought together is counted nowhere. A round lasts as long as on the study's board, all devices
beside each other, or where no board is emulated as long as it takes here.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from broker_server.study.records import Outcome, RoundRecord
from edge_client.checkpoint import Checkpoint
from edge_client.data.records import Records, load_records
from edge_client.errors import GcaError
from edge_client.evaluation import Evaluator
from edge_client.methods.context import LocalContext
from edge_client.methods.single import Single
from edge_client.model.choice import trainer_for
from edge_client.model.trainer import ModelState
from edge_client.protocol.messages import Evaluation, Phase, Telemetry
from sim.config.devices import POOLED, device_boards
from sim.emulation.journal import Journal
from sim.emulation.models import save_model, state_sha256
from sim.emulation.runs import Federation, Finished
from sim.emulation.states import load_state, save_state
from sim.fleet.compute import cores
from sim.torch_thread import torch_in_one_thread

METHOD = Single()


async def run(federation: Federation, journal: Journal) -> Finished:
    """Run all rounds and return how it ended; raises `GcaError` when training fails.

    The results do not depend on the number of threads: each trainee's work is its own.
    """
    torch_in_one_thread(federation.study)
    plan, clock = federation.plan, federation.plan.start.seconds
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(cores()) as pool:
        loop = asyncio.get_running_loop()
        trainees = [_Trainee(federation, name, records) for name, records in _records(federation)]
        for round in range(plan.start.completed + 1, plan.rounds + 1):
            journal.opened(round, len(trainees))
            began = time.monotonic()
            told = await asyncio.gather(*(loop.run_in_executor(pool, one.round, round) for one in trainees))
            board = max(one.board_seconds for one in trainees)
            opened, clock = clock, clock + (board or time.monotonic() - began)
            for telemetry, ended in told:
                journal.observe(telemetry, opened + (telemetry.spent_s["reconstruction"] if board else ended - began))
            journal.record(RoundRecord(round, opened, clock, clock, None, (), (), (), (), {}, {}))
    return Finished(Outcome(True, plan.rounds, clock), state_sha256([one.save() for one in trainees]))


def _records(federation: Federation) -> Iterator[tuple[str, Records]]:
    """Yield who trains on what, in the order of names; all are judged on the one test set."""
    first = load_records(federation.shards[0].path, federation.test)
    shards = [(shard.device, load_records(shard.path).samples) for shard in federation.shards]
    if federation.study.method == "centralized":
        shards = [(POOLED, np.concatenate([samples for _, samples in shards]))]
    for name, samples in shards:
        yield name, replace(first, samples=samples)


@dataclass
class _Notes:
    """What is noted of one round for its telemetry."""

    evaluations: list[Evaluation] = field(default_factory=list)
    evaluating_s: float = 0.0


class _Trainee:
    """One model in training and the records it learns."""

    def __init__(self, federation: Federation, name: str, records: Records) -> None:
        self._federation, self.name, self._records = federation, name, records
        self._speed = device_boards(federation.study)[name].training_flops
        hyper = federation.plan.hyper
        self._trainer = trainer_for(hyper, records.samples.shape[1])
        self._evaluator = Evaluator(records, self._trainer, hyper.threshold_quantile)
        done = federation.plan.start.completed
        self._state: ModelState = (
            load_state(federation.directory, done, name).state if done else METHOD.initial(self._context(0, _Notes()))
        )

    @property
    def board_seconds(self) -> float:
        """Seconds of a round on the emulated board; 0 where none is emulated."""
        if self._speed is None:
            return 0.0
        epochs = METHOD.epochs(self._federation.plan.hyper).recon
        return epochs * self._trainer.flops * len(self._records.samples) / self._speed

    def round(self, round: int) -> tuple[Telemetry, float]:
        """Train for one round and return what there is to tell of it, and when it was over by this machine's clock."""
        notes, began = _Notes(), time.monotonic()
        try:
            self._state = METHOD.round(self._state, self._context(round, notes))
        except Exception as error:
            raise GcaError(f"{self.name} failed in round {round}: {type(error).__name__}: {error}") from error
        ended = time.monotonic()
        self._keep(round)
        trained = self.board_seconds or ended - began - notes.evaluating_s
        told = Telemetry(
            run=self._federation.plan.name, round=round, device=self.name, seq=round, outcome="completed",
            spent_s={"reconstruction": trained, "evaluate": notes.evaluating_s},
            spans_s={"reconstruction": (self.board_seconds or ended - began, 0.0)}, tallies=(),
            evaluations=tuple(notes.evaluations), ignored={},
            state_sha256=sha256(self._state.parameters.tobytes()).hexdigest(),
        )  # fmt: skip
        return told, ended

    def _keep(self, round: int) -> None:
        federation, every = self._federation, self._federation.study.checkpoints
        if every is not None and round % every == 0:
            kept = Checkpoint(federation.plan.name, self.name, round, holds=0, seq=0, state=self._state)
            save_state(federation.directory, kept)

    def save(self) -> Path:
        """Write the final model and return where it lies."""
        path = self._federation.directory / "models" / f"{self.name}.safetensors"
        save_model(path, self._state, self.name, self._federation.plan.run)
        return path

    def _context(self, round: int, notes: _Notes) -> LocalContext:
        plan, every = self._federation.plan, self._federation.study.evaluation.every

        def observe(phase: Phase, epoch: int, state: ModelState, loss: float) -> None:
            began = time.monotonic()
            notes.evaluations.append(self._evaluator.evaluate(phase, epoch, state, loss))
            notes.evaluating_s += time.monotonic() - began

        return LocalContext(
            hyper=plan.hyper, trainer=self._trainer, samples=self._records.samples, seed=plan.seed, device=self.name,
            round=round, observe=observe, each_epoch=every == "epoch",
        )  # fmt: skip
