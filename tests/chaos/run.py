"""One run in virtual time under a schedule of faults, and what must hold of it whatever happens.

The server, the devices, their training, the links and the broker's core are the real ones.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256

import torch
from chaos.faults import PATIENCE_S, Fault, Setting, gentle, schedule, setting
from chaos.network import SERVER_SIDE, BrittleNetwork, with_outages
from chaos.verdict import counted_twice, ledgers_that_disagree
from chaos.witnesses import Life, Process, Spy, Watched, Witness
from device.in_memory import HYPER as BASE
from device.in_memory import RECORDS, SPEC, WIDTH, records_of
from msgspec.structs import replace as with_fields

from broker_server.methods.fedavg import FedAvgServer
from broker_server.methods.gca import GcaServer
from broker_server.plan import RunPlan
from broker_server.server import Server
from broker_server.study.records import Outcome
from edge_client.checkpoint import Checkpoint
from edge_client.conversation.identity import Identity
from edge_client.device import Device, live
from edge_client.errors import ConnectionLost, GcaError
from edge_client.model.choice import trainer_for
from edge_client.protocol.messages import Telemetry
from edge_client.seeds import digest, stream
from edge_client.transport.base import Settings, Transport
from sim.fleet.clock import VirtualClock
from sim.fleet.compute import Inline
from sim.fleet.loop import VirtualLoop
from sim.links.profiles import parse_link

SEED = 7
HYPER = with_fields(BASE, local_epochs=1)
LINK = parse_link("100kbit/200kbit/100ms")
KEEPALIVE_S = 10
TRAINING_S = 2.0
LONGEST_RUN_S = 3000.0
"""No run may take longer, however long devices stay away: four rounds that wait for the dead, with all patience."""
LONGEST_GOODBYE_S = 300.0
"""Nor any device, once the server has gone."""


@dataclass(frozen=True)
class Ended:
    """How a run ended. `state` is a hash over the final models of all devices; None if one did not get there."""

    outcome: Outcome | None
    took_s: float
    state: str | None
    accepted: tuple[tuple[str, ...], ...]
    fates: tuple[tuple[str, ...], ...]
    flaws: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def terminal(self) -> str:
        return "no end" if self.outcome is None else "completed" if self.outcome.completed else self.outcome.reason


def plan(of: Setting) -> RunPlan:
    return RunPlan(run="chaos", incarnation="5f0c21aa", method=of.method, seed=SEED, rounds=of.rounds, hyper=HYPER,
                   participation=of.participation, devices=of.devices, minimum_devices=2, quorum=of.quorum,
                   patience_s=PATIENCE_S, chunk_size=64)  # fmt: skip


class Run:
    """A federation and its faults; `go` runs it to the end."""

    def __init__(self, of: Setting, faults: tuple[Fault, ...]) -> None:
        self.setting, self.faults = of, faults
        self.loop = asyncio.get_running_loop()
        links = {n: with_outages(LINK, [f for f in faults if f.device == n]) for n in of.names}
        self.network = BrittleNetwork(links, SEED)
        self.clock = VirtualClock(self.loop)
        self.work = Inline(self.clock)
        self.witness = Witness()
        half = FedAvgServer(HYPER, SEED) if of.method == "fedavg" else (
            GcaServer(HYPER.latent_dim, HYPER.upload_fraction, SPEC, SEED)
        )  # fmt: skip
        self.spy = Spy(half)
        self.outcome: asyncio.Future[Outcome] = self.loop.create_future()
        self.server_lives: list[tuple[Life, asyncio.Task[None]]] = []
        self.lives: dict[str, list[Process]] = defaultdict(list)
        self.states: dict[str, bytes] = {}
        self.kept: dict[str, Checkpoint] = {}
        self.flaws: list[str] = []
        self._speed = trainer_for(HYPER, WIDTH).flops * RECORDS / TRAINING_S

    async def go(self) -> Ended:
        self.start_server()
        for name in self.setting.names:
            self.start(name)
        hurting = asyncio.create_task(self._hurt(), name="faults")
        outcome = None
        try:
            async with asyncio.timeout(LONGEST_RUN_S):
                outcome = await self.outcome
        except TimeoutError:
            self.flaws.append(f"no end within {LONGEST_RUN_S:g} s")
        except GcaError as error:
            self.flaws.append(f"the server failed: {error}")
        took = self.loop.time()
        hurting.cancel()
        self.network.mend_broker()
        await self._let_devices_end()
        lives = [task for _, task in self.server_lives]
        for task in lives:
            task.cancel()
        await asyncio.gather(*lives, hurting, return_exceptions=True)
        return self._judge(outcome, took)

    # ---- the server ---------------------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Start the server's process, which goes on from what the one before it wrote down."""
        life, number = Life(self.witness), len(self.server_lives)
        self.witness.forget_later()
        self.spy.forget_later(self.witness.reached.completed)

        @asynccontextmanager
        async def alive(settings: Settings) -> AsyncIterator[Transport]:
            if life.dead:
                raise ConnectionLost("dead")
            async with self.network.beside(settings) as transport:
                yield transport

        run = replace(plan(self.setting), life=number, start=self.witness.reached)
        self.server = Server(run, self.spy, alive, self.clock, life, self.work.offload)
        task = asyncio.create_task(self._serve(self.server, life), name=f"server#{number}")
        self.server_lives.append((life, task))

    async def _serve(self, server: Server, life: Life) -> None:
        try:
            outcome = await server.serve()
        except GcaError as error:
            if not life.dead:
                self.outcome.set_exception(error)
        else:
            if not life.dead:
                self.outcome.set_result(outcome)

    async def _kill_server(self, seconds: float) -> None:
        life, task = self.server_lives[-1]
        if life.dead or task.done():
            return
        life.dead = True
        self.network.cut_server()
        task.cancel()
        await asyncio.sleep(seconds)
        self.start_server()

    # ---- devices ------------------------------------------------------------------------------------------------

    def start(self, name: str, *, with_state: bool = False) -> None:
        """Start a device's process, which knows nothing of an earlier one or, `with_state`, has what that kept."""
        kept = self.kept.get(name) if with_state else None
        number = len(self.lives[name])
        instance = f"{digest(SEED, 'instance', number, name, size=4):08x}"
        who = Identity("chaos", name, instance, RECORDS, WIDTH, LINK.up, LINK.down, KEEPALIVE_S, 64)
        connect = self.network.behind(name)

        @asynccontextmanager
        async def alive(settings: Settings) -> AsyncIterator[Transport]:
            if process.dead:
                raise ConnectionLost("dead")
            async with connect(settings) as transport:
                yield transport

        session = Watched(who, alive, self.clock, stream(SEED, "backoff", number, name), self.witness.notes.append,
                          kept.seq if kept else 0, (kept.round + 1 if kept else 0) if with_state else None)  # fmt: skip
        process = Process(name, session)

        async def report(telemetry: Telemetry) -> None:
            process.reports.append(telemetry)
            await session.report(telemetry)

        device = Device(records_of(name), session, self.clock, self.work.offload, report, "never", self._speed,
                        keep=partial(self._keep, process), keeps_start=True, resume=lambda welcome: kept)  # fmt: skip
        process.task = asyncio.create_task(self._live(process, device), name=f"{name}#{number}")
        self.lives[name].append(process)

    def _keep(self, process: Process, state: Checkpoint) -> None:
        if not process.dead:
            self.kept[process.name] = state

    async def _live(self, process: Process, device: Device) -> None:
        try:
            state = await live(device)
        except (GcaError, asyncio.CancelledError) as error:
            process.error = error
            if not process.dead and isinstance(error, GcaError):
                self.witness.notes.append(f"{process.name} ends: {error}")
        else:
            if not process.dead:
                self.states[process.name] = state.parameters.tobytes()

    async def _let_devices_end(self) -> None:
        """Wait for all that have heard from the server; who never did would wait for the next one."""
        tasks = [p.task for lives in self.lives.values() for p in lives if p.task is not None]
        deadline = self.loop.time() + LONGEST_GOODBYE_S
        while waiting := [task for task in tasks if not task.done()]:
            left = deadline - self.loop.time()
            if left <= 0:
                break
            await asyncio.wait(waiting, timeout=min(left, 5.0), return_when=asyncio.FIRST_COMPLETED)
        for lives in self.lives.values():
            for process in lives:
                assert process.task is not None
                if not process.task.done():
                    if process.session.mail.welcome is not None and not process.dead:
                        self.flaws.append(f"{process.task.get_name()} does not end")
                    process.dead = True
                    process.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- faults -------------------------------------------------------------------------------------------------

    async def _hurt(self) -> None:
        later: set[asyncio.Task[None]] = set()
        for fault in self.faults:
            await asyncio.sleep(max(0.0, fault.at - self.loop.time()))
            task = asyncio.create_task(self._happen(fault), name=str(fault))
            later.add(task)
            task.add_done_callback(later.discard)
        await asyncio.gather(*later)

    async def _happen(self, fault: Fault) -> None:
        network, tampering = self.network, self.network.tampering[fault.device]
        match fault.kind:
            case "cut":
                network.cut(fault.device)
            case "half-open":
                network.half_open(fault.device)
            case "kill" | "kill with state" | "power":
                await self._restart(fault)
            case "duplicate":
                for one in (tampering, network.tampering[SERVER_SIDE]):
                    one.twice_until = max(one.twice_until, fault.at + fault.seconds)
            case "corrupt":
                tampering.next_up.append(fault.place)
            case "corrupt broadcast":
                tampering.next_broadcast.append(fault.place)
            case "server cut":
                network.cut_server()
            case "server kill":
                await self._kill_server(fault.seconds)
            case "broker" | "broker with memory" if not network.broker_away:
                network.break_broker(remembering=fault.kind != "broker")
                await asyncio.sleep(fault.seconds)
                network.mend_broker()

    async def _restart(self, fault: Fault) -> None:
        process = self.lives[fault.device][-1]
        if process.dead or process.task is None or process.task.done():
            return
        process.dead = True
        if fault.kind != "power":
            self.network.cut(fault.device)
        else:
            self.network.half_open(fault.device)
        process.task.cancel()
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
            if not self.server._over:
                self.start(fault.device, with_state=fault.kind == "kill with state")

    # ---- what must hold -----------------------------------------------------------------------------------------

    def _judge(self, outcome: Outcome | None, took: float) -> Ended:
        witness = self.witness
        if outcome is not None and not outcome.completed and not outcome.reason:
            self.flaws.append("ended early without a reason")
        self.flaws += [*counted_twice(self), *ledgers_that_disagree(self)]
        whole, last = sha256(), 0 if outcome is None else outcome.rounds
        finals = [self._final(name, last) for name in self.setting.names]
        for final in finals:
            whole.update(final or b"?")
        complete = None not in finals
        fates = tuple(tuple(r.outcome for r in p.reports) for n in self.setting.names for p in self.lives[n])
        return Ended(outcome, took, whole.hexdigest() if complete else None,
                     tuple(record.accepted for record in witness.records), fates, tuple(self.flaws),
                     tuple(witness.notes))  # fmt: skip

    def _final(self, name: str, last: int) -> bytes | None:
        """Return the model that a device ended with. One that was killed after the last round, or comes back when the
        server has gone, has the one that it kept of that round."""
        kept = self.kept.get(name)
        if name not in self.states and self.lives[name][-1].dead and kept is not None and kept.round == last:
            return kept.state.parameters.tobytes()
        return self.states.get(name)


def play(of: Setting, faults: tuple[Fault, ...]) -> Ended:
    """Run once. A run that can never go on is a flaw of it."""
    with one_torch_thread(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(_go(of, faults))
        except GcaError as error:  # blocked, most likely
            return Ended(None, 0.0, None, (), (), (f"{type(error).__name__}: {error}",))


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Clusters of a few codes are no work for many threads, beside the cost of waking them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


async def _go(of: Setting, faults: tuple[Fault, ...]) -> Ended:
    return await Run(of, faults).go()


@cache
def undisturbed(of: Setting) -> Ended:
    return play(of, ())


def judged(seed: int) -> Ended:
    """Run under the faults of a seed, and compare with the undisturbed run where the faults allow it."""
    of, faults = setting(seed), schedule(seed)
    ended, model = play(of, faults), undisturbed(of)
    flaws = list(ended.flaws)
    if gentle(faults, of) and (ended.terminal, ended.accepted) != (model.terminal, model.accepted):
        flaws.append(f"lost something: {ended.terminal}, {ended.accepted} instead of {model.accepted}")
    same_rounds = ended.accepted == model.accepted and ended.fates == model.fates
    if ended.terminal == "completed" and (gentle(faults, of) or same_rounds) and ended.state != model.state:
        flaws.append("no round was missed, yet the final models are others")
    return replace(ended, flaws=tuple(flaws))


def told(seed: int, ended: Ended) -> str:
    """Say all there is to say of a seed's run."""
    of = setting(seed)
    lines = [f"seed {seed}: {of}", *(f"  {fault}" for fault in schedule(seed))]
    lines += [f"ended after {ended.took_s:.1f} s: {ended.terminal}", f"accepted {ended.accepted}"]
    lines += [f"FLAW {flaw}" for flaw in ended.flaws]
    return "\n".join([*lines, *(f"  note: {note}" for note in ended.notes)])
