"""The life of a device: Algorithm 1 from the device's side, as one coroutine.

The same coroutine runs on a Raspberry Pi against a real broker and as one of N emulated devices. All that touches
the outside is passed in: the session (network), the clock, `offload` (runs training off the event loop, so that
the connection stays alive meanwhile) and `report` (where a round's telemetry goes).
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import ParamSpec, TypeVar

from edge_client.checkpoint import Checkpoint
from edge_client.clock import Clock
from edge_client.cohort import EVERYONE, takes_part
from edge_client.conversation.session import Session
from edge_client.data.records import Records
from edge_client.errors import ConfigError, GcaError, ProtocolError, in_words
from edge_client.evaluation import Evaluator, Instants
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import DeviceMethod
from edge_client.methods.coded import coded
from edge_client.methods.context import LocalContext
from edge_client.methods.defended import defended
from edge_client.methods.registry import method
from edge_client.model.autoencoder import FloatArray
from edge_client.model.choice import trainer_for
from edge_client.model.scoring import Labels, Ranking, ranking
from edge_client.model.trainer import ModelState, Trainer
from edge_client.offload import Offload, no_sooner
from edge_client.private_seeds import Secrets
from edge_client.protocol.lives import in_any_life
from edge_client.protocol.messages import COMPLETED, Phase, Telemetry, Welcome
from edge_client.round_notes import RoundNotes
from edge_client.words import counted

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Device:
    """What one device brings along. `evaluate` says when its model is judged; `flops_per_s` makes training last
    as long as on a board of that speed (None: as long as it takes here); `method` and `trainer` choose its work,
    `ranking` ranks its test scores.

    `keep` writes down what the device could go on from, after every `keep_every`-th round, and with `keeps_start`
    before its first. After a stop, `resume` returns what was kept of this run; if it has to begin anew though something
    was kept, `remark` says why, for the server's records. In rounds in which it is `silent` it does nothing, as if it
    were broken, but keeps its connection. `secrets` are what it keeps from the server, for runs
    whose codes are defended.
    """

    records: Records
    session: Session
    clock: Clock
    offload: Offload
    report: Callable[[Telemetry], Awaitable[None]]
    evaluate: Instants = "epoch"
    flops_per_s: float | None = None
    trainer: Callable[[Hyperparameters, int], Trainer] = trainer_for
    ranking: Callable[[FloatArray, Labels], Ranking] = ranking
    method: Callable[[str], DeviceMethod] = method
    keep: Callable[[Checkpoint], None] | None = None
    keep_every: int = 1
    keeps_start: bool = False
    resume: Callable[[Welcome], Checkpoint | None] = lambda welcome: None
    remark: Callable[[], str] = lambda: ""
    silent: Callable[[int], bool] = lambda round: False
    secrets: Secrets | None = None


async def live(device: Device) -> ModelState:
    """Join the run, take part until the server ends it, and return the final model.

    Raises `GcaError` naming device, round and phase when local work fails; the server has been told by then.
    """
    session = device.session
    async with session.connection():
        try:
            work = _Work(device, await session.welcome())
            await work.begin()
            last = work.welcome.round
            if (cut_short := work.cut_short) is not None:
                await _finish(work, cut_short)
            while (opening := await session.next_round(last)).state != "ended":
                last, notes = opening.round, RoundNotes(opening.round)
                if device.silent(last):
                    notes.outcome, notes.detail = "missed", "silent in this round"
                    await device.report(work.telemetry(notes))
                    continue
                taking_part = takes_part(opening.cohort or EVERYONE, work.welcome.seed, last, session.who.device)
                await _round(work, notes, taking_part)
                await work.judge_last(notes)
                await work.keep(last)
                await device.report(work.telemetry(notes))
            if opening.reason == COMPLETED and (last == work.welcome.round or last < opening.round):
                await _come_late(work, opening.round)

            async def report_end() -> None:
                await device.report(work.telemetry(RoundNotes(last, outcome="idle", detail=opening.reason)))

            await session.leave("left", first=report_end)
        except Exception as error:
            await session.leave("failed", in_words(error))
            raise
        except asyncio.CancelledError:  # by a person: a connection closed in order leaves no last will behind
            await session.leave("left", "stopped")
            raise
        return work.state


async def _finish(work: "_Work", round: int) -> None:
    """Do again what the process before this one did of a round, up to the upload that the server has, and go on."""
    notes = RoundNotes(round)
    await _round(work, notes, taking_part=True, delivered=True)
    await work.judge_last(notes)
    await work.keep(round)
    await work.device.report(work.telemetry(notes))


async def _come_late(work: "_Work", last: int) -> None:
    """Fetch the model that the run has ended with, after its `last` round, where it is for all: this process joined
    after that had opened, or was at an earlier one until the end."""
    if work.method.hears_all_broadcasts and work.holds < last:
        await _catch_up(work, RoundNotes(last + 1))


async def _round(work: "_Work", notes: RoundNotes, taking_part: bool, delivered: bool = False) -> None:
    """One round from the device's side; with a method whose broadcasts concern all, also one it takes no part in.
    `delivered`: the server has its upload."""
    hears_all = work.method.hears_all_broadcasts
    if taking_part and hears_all and work.holds != notes.round - 1:
        await _catch_up(work, notes)
        taking_part = work.holds == notes.round - 1  # else it would train on a model that is not the round's
    await work.device.session.enter(notes.round, taking_part or hears_all)
    if taking_part:
        await _take_part(work, notes, delivered)
        return
    if notes.outcome == "completed":
        notes.outcome = "idle"
    if hears_all:
        await _take_in(work, notes)


async def _take_part(work: "_Work", notes: RoundNotes, delivered: bool) -> None:
    """One round of Algorithm 1 from the device's side: lines 5 to 19, then 25 to 36."""
    method, stage = work.method, work.method.stages[0]
    work.state, upload = await work.train(notes, stage, method.before_upload, work.state, work.context(notes))
    if not delivered:
        with notes.timed(work.device.clock, "upload"):
            fate = await work.device.session.upload(notes.round, upload)
        notes.outcome, notes.detail = fate.outcome, fate.detail
    await _take_in(work, notes)


async def _take_in(work: "_Work", notes: RoundNotes) -> None:
    """Await the round's broadcast and use it."""
    with notes.timed(work.device.clock, "wait"):
        broadcast = await work.device.session.broadcast(notes.round)
    if broadcast is None:
        notes.outcome = "missed" if notes.outcome in ("completed", "idle") else notes.outcome
        return
    method, stage = work.method, work.method.stages[1]

    def take_in(context: LocalContext) -> ModelState:
        state = method.after_broadcast(work.state, context, broadcast)
        work.sha256(state.parameters)  # here, where devices work side by side, and not when the report is made
        return state

    try:
        work.state = await work.train(notes, stage, take_in, work.context(notes))
        work.holds = notes.round
    except ProtocolError as error:
        notes.outcome, notes.detail = "missed", f"unusable broadcast: {error}"


async def _catch_up(work: "_Work", notes: RoundNotes) -> None:
    """Fetch the model that this round starts from, which this device missed: it joined late or was away."""
    before = RoundNotes(notes.round - 1)  # what is noted of it is no part of this round
    await work.device.session.enter(before.round, True)
    with notes.timed(work.device.clock, "catch_up"):
        await _take_in(work, before)
    notes.outcome, notes.detail = before.outcome, before.detail


class _Work:
    """The device's local work: what it is done with, its duration and its evaluation. `state` is the model, held here
    alone, as a fleet has a thousand of them; `holds` is the round whose broadcast was used last, `cut_short` one that
    an earlier process has uploaded for and not ended."""

    state: ModelState

    def __init__(self, device: Device, welcome: Welcome) -> None:
        self.device, self.welcome = device, welcome
        hyper, who, secrets = welcome.hyper, device.session.who, device.secrets
        if secrets is not None:
            secrets = secrets.of_run(in_any_life(welcome.run, who.run), who.device)
        self.method = coded(defended(device.method(welcome.method), hyper, secrets), hyper)
        self.holds, self.remark = 0, ""
        self.cut_short: int | None = None
        self.trainer = device.trainer(hyper, device.records.samples.shape[1])
        self._hashed: tuple[weakref.ref[FloatArray], str] | None = None
        self.evaluator = Evaluator(device.records, self.trainer, hyper.threshold_quantile, device.ranking)

    def context(self, notes: RoundNotes) -> LocalContext:
        hyper, when, clock = self.welcome.hyper, self.device.evaluate, self.device.clock

        def observe(phase: Phase, epoch: int, state: ModelState, loss: float) -> None:
            notes.unjudged = partial(self.evaluator.evaluate, phase, epoch, state, loss)
            if when in ("epoch", "phase"):
                notes.judge(clock)

        return LocalContext(
            hyper=hyper, trainer=self.trainer, samples=self.device.records.samples, seed=self.welcome.seed,
            device=self.device.session.who.device, round=notes.round, observe=observe,
            each_epoch=when == "epoch",
        )  # fmt: skip

    async def judge_last(self, notes: RoundNotes) -> None:
        """Judge the model that the round ends with, where none before it was."""
        if self.device.evaluate == "round" and notes.unjudged is not None:
            await self.do("evaluation", self.device.offload(notes.judge, self.device.clock))

    async def begin(self) -> None:
        """Take up the state that this device starts with: the one it kept, or that before round 1."""
        if (kept := self.device.resume(self.welcome)) is not None:
            self._check_kept(kept.state)
            self.holds, self.state = kept.holds, kept.state
            self.cut_short = kept.round + 1 if self.device.session.mail.standing(kept.round + 1) == "accepted" else None
            return
        self.remark = self.device.remark()
        initial = self.device.offload(self.method.initial, self.context(RoundNotes(0)))
        self.state = await self.do("initialisation", initial)
        if self.device.keeps_start:
            await self.keep(self.welcome.round)

    def _check_kept(self, state: ModelState) -> None:
        """Raise `ConfigError` for a state of another model: of records of another width."""
        if len(state.parameters) != (wanted := self.trainer.parameter_count):
            width = self.device.records.samples.shape[1]
            raise ConfigError(
                f"device {self.device.session.who.device}: the state that it kept is of a model of "
                f"{len(state.parameters)} parameters, where records of {counted(width, 'feature')} need one of "
                f"{wanted}: give the records that it was made from, or delete it"
            )

    async def keep(self, round: int) -> None:
        """Write down what this device could go on from, if it is time for that."""
        keep, session = self.device.keep, self.device.session
        if session.end is not None and session.end.reason != COMPLETED:
            return  # the run was stopped in the middle of this round, which is to be run again
        if keep is not None and round % self.device.keep_every == 0:
            seq = session.outbox.seq + 1  # the report of this round takes one
            kept = Checkpoint(session.mail.life, session.who.device, round, self.holds, seq, self.state)
            await self.do("checkpoint", self.device.offload(keep, kept))

    async def do(self, phase: str, job: Awaitable[R]) -> R:
        """Wait for local work off the loop; an error in it is told with device and phase."""
        try:
            return await job
        except ProtocolError:
            raise  # the broadcast was at fault, not the work
        except Exception as error:
            who = self.device.session.who.device
            raise GcaError(f"device {who} failed in {phase}: {type(error).__name__}: {error}") from error

    async def train(self, notes: RoundNotes, phase: str, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a local phase and note its seconds, without those of the evaluations inside it, which no device in
        the field makes. On an emulated board it lasts as long as there, if that is longer."""
        clock, aside = self.device.clock, notes.judging_s
        speed, begun = self.device.flops_per_s, clock.now()
        board = 0.0 if speed is None else self._flops(phase) / speed
        result = await self.do(phase, no_sooner(clock, board, self.device.offload(step, *args, **kwargs)))
        ended = clock.now()
        notes.spent_s[phase] = max(board, ended - begun - (notes.judging_s - aside))
        notes.spans_s[phase] = begun, ended
        return result

    def _flops(self, phase: str) -> float:
        """Arithmetic of a phase."""
        epochs, trainer = self.method.epochs(self.welcome.hyper), self.trainer
        work = epochs.recon * trainer.flops if phase == self.method.stages[0] else epochs.align * trainer.encoder_flops
        return work * len(self.device.records.samples)

    def telemetry(self, notes: RoundNotes) -> Telemetry:
        """Return the report of a round; the first that was completed carries the remark, if there is one."""
        if notes.outcome == "completed" and self.remark:
            notes.detail, self.remark = self.remark, ""
        return notes.report(self.device.session, self.device.clock.now(), self.sha256(self.state.parameters))

    def sha256(self, parameters: FloatArray) -> str:
        """Hash parameters, unless they are those hashed last: a device that sat a round out has learned nothing."""
        if self._hashed is None or self._hashed[0]() is not parameters:
            self._hashed = weakref.ref(parameters), sha256(parameters.tobytes()).hexdigest()
        return self._hashed[1]
