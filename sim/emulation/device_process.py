"""One emulated device as a process of its own: the same program as on a Raspberry Pi, behind an emulated link."""

import asyncio
import multiprocessing
import os
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from edge_client.clock import RealClock
from edge_client.conversation.identity import Identity
from edge_client.conversation.session import Session
from edge_client.data.records import load_records
from edge_client.device import Device, live
from edge_client.errors import in_words
from edge_client.evaluation import Instants
from edge_client.offload import into
from edge_client.private_seeds import emulated
from edge_client.protocol.messages import Telemetry
from edge_client.seeds import stream
from edge_client.transport.endpoint import Endpoint
from edge_client.transport.mqtt import connector
from sim.emulation.child import begin, die_with_parent
from sim.emulation.dropout import silences
from sim.emulation.models import save_model
from sim.emulation.pipe import DeviceDone, DeviceFailed, DeviceLog, DeviceTold, FromDevice, Pipe
from sim.emulation.states import load_state, save_state


class DeviceSpec(msgspec.Struct, frozen=True):
    """Everything one device process needs; plain values, so that it crosses to the process as bytes.

    In the folder `study` it keeps its state after every `keep_every`-th round (None: never), and finds that after round
    `completed`, unless this is 0.
    """

    run: str
    device: str
    broker: Endpoint
    records: str
    test: str
    model: str
    up_rate: float
    down_rate: float
    keepalive: int
    chunk_size: int
    evaluate: Instants
    flops_per_s: float | None
    seed: int
    study: str
    keep_every: int | None
    completed: int
    dropout: float


def main(spec: bytes, connection: Connection) -> None:
    """Entry point of the process."""
    begin(multiprocessing.current_process().name)
    pipe: Pipe[FromDevice] = Pipe(connection, FromDevice)
    try:
        asyncio.run(_live(msgspec.msgpack.decode(spec, type=DeviceSpec), pipe))
    except BaseException as error:
        pipe.send(DeviceFailed(in_words(error), traceback.format_exc()))
        raise SystemExit(1) from None
    pipe.send(DeviceDone())


async def _live(spec: DeviceSpec, pipe: Pipe[FromDevice]) -> None:
    die_with_parent()
    records = load_records(Path(spec.records), Path(spec.test))
    samples, input_dim = records.samples.shape
    instance = os.urandom(4).hex()
    who = Identity(spec.run, spec.device, instance, samples, input_dim, spec.up_rate, spec.down_rate, spec.keepalive,
                   spec.chunk_size)  # fmt: skip
    # A password does not travel through arguments: every process of the run reads it from its environment.
    where = replace(spec.broker, password=os.environ.get("GCA_PASSWORD"))
    clock, study = RealClock(), Path(spec.study)
    kept = load_state(study, spec.completed, spec.device) if spec.completed else None
    session = Session(who, connector(where), clock, stream(spec.seed, "backoff", 0, spec.device),
                      lambda text: pipe.send(DeviceLog(text)), kept.seq if kept else 0)  # fmt: skip

    async def report(telemetry: Telemetry) -> None:
        pipe.send(DeviceTold(telemetry))

    with ThreadPoolExecutor(1) as pool:
        device = Device(records, session, clock, into(pool), report, spec.evaluate, spec.flops_per_s,
                        keep=partial(save_state, study) if spec.keep_every else None, keep_every=spec.keep_every or 1,
                        resume=lambda welcome: kept, silent=silences(spec.seed, spec.device, spec.dropout),
                        secrets=emulated(spec.seed, spec.device))  # fmt: skip
        state = await live(device)
    save_model(Path(spec.model), state, spec.device, spec.run)
