"""`gca device`: one device against a broker. Needs nothing but floor 1, so it runs as it is on a Raspberry Pi."""

import argparse
import os
import sys
import traceback
from asyncio import CancelledError
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.errors import GcaError

if TYPE_CHECKING:
    from edge_client.protocol.messages import Telemetry

# Before numpy is imported: local training gains nothing from more BLAS threads, and results must not depend on them.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

MAX_RATE = 1e15
"""Bits per second; what a message can carry."""
EXAMPLE = """example:
  gca device --broker mqtt://192.168.1.10 --run magic --id pi-kitchen --data records.npz

records.npz holds an array `samples` of shape (records, features): normal records, standardised as on every other
device of the run; optionally `test` and `labels` (1 = anomaly) to evaluate on. The password is read from GCA_PASSWORD.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    command = argparse.ArgumentParser(
        prog="gca device", description="Take part in a federation as one device.", epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = command.add_argument
    add("--broker", required=True, metavar="URL", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    add("--run", required=True, help="name of the run, as the server has it")
    add("--id", required=True, help="this device's name, unique in the run")
    add("--data", required=True, type=Path, metavar="FILE.npz", help="this device's records")
    add("--username", help="user name at the broker; default: the device's name when GCA_PASSWORD is set")
    add("--ca-file", metavar="FILE", help="PEM file of the CA that signed the broker's certificate")
    add("--cert", metavar="FILE", help="PEM file of this device's certificate, for a broker that asks who it is")
    add("--key", metavar="FILE", help="PEM file of its key")
    add("--up-rate", type=float, default=0.0, metavar="BIT/S", help="uplink of this device, if known")
    add("--down-rate", type=float, default=0.0, metavar="BIT/S", help="downlink of this device, if known")
    add("--keepalive", type=int, metavar="S", help="MQTT keepalive (default: from the rates, 60 if unknown)")
    add("--chunk-size", type=int, metavar="BYTES",
        help="most bytes of an upload in one message (default: from the rates, 65536 if unknown)")  # fmt: skip
    add(
        "--evaluate",
        choices=("epoch", "round", "never"),
        default="round",
        help="when to judge the model (default round)",
    )
    add("--model", type=Path, metavar="FILE.npz", help="where to write the final model's parameters")
    add("--debug", action="store_true", help="show the traceback of an error")
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one device to the end of its run; return the exit code."""
    arguments = parser().parse_args(argv)
    try:
        _run(arguments)
        sys.stdout.flush()
    except (KeyboardInterrupt, CancelledError):  # cancelled: SIGTERM, the same as Ctrl-C
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if arguments.debug or os.environ.get("GCA_DEBUG"):
            traceback.print_exc()
        if isinstance(error, GcaError):
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        fault = f"a fault in gca itself: {type(error).__name__}: {error}"
        print(f"error: {fault}; run it again with --debug and report it", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    import msgspec
    import numpy as np

    from edge_client.clock import RealClock
    from edge_client.device import Device, live
    from edge_client.errors import ConfigError
    from edge_client.offload import into
    from edge_client.protocol.messages import COMPLETED, SERVER, Name, Telemetry
    from edge_client.records import load_records
    from edge_client.seeds import stream
    from edge_client.session import Identity, Session
    from edge_client.stopping import until_told_to_stop
    from edge_client.transport.mqtt import connector, endpoint

    for option, value in (("--run", arguments.run), ("--id", arguments.id)):
        try:
            msgspec.convert(value, Name)
        except msgspec.ValidationError:
            raise ConfigError(f"{option} {value!r}: use 1 to 64 letters, digits, '.', '_' or '-'") from None
    if arguments.id == SERVER:
        raise ConfigError(f"--id {SERVER}: that is the server's own name; give this device another")
    pace = _pace(arguments)
    records = load_records(arguments.data)
    password = os.environ.get("GCA_PASSWORD")
    username = arguments.username or (arguments.id if password else None)
    where = endpoint(arguments.broker, username=username, password=password, ca_file=arguments.ca_file,
                     cert_file=arguments.cert, key_file=arguments.key)  # fmt: skip
    samples, width = records.samples.shape
    who = Identity(arguments.run, arguments.id, os.urandom(4).hex(), samples, width, arguments.up_rate,
                   arguments.down_rate, **pace)  # fmt: skip

    async def take_part() -> None:
        session = Session(who, connector(where), RealClock(), stream(0, "backoff", 0, arguments.id), print)

        async def report(telemetry: Telemetry) -> None:
            if not (session.end and telemetry.detail == session.end.reason):  # that of the end is told below
                print(_line(telemetry), flush=True)
            await session.report(telemetry)

        with ThreadPoolExecutor(1) as pool:
            device = Device(records, session, RealClock(), into(pool), report, arguments.evaluate)
            print(f"{arguments.id}: {samples} records of {width} features, broker {where}, run {arguments.run}",
                  flush=True)  # fmt: skip
            state = await live(device)
        if arguments.model is not None:
            np.savez(arguments.model, parameters=state.parameters)
        assert session.end is not None
        if session.end.reason != COMPLETED:
            raise GcaError(f"run {arguments.run} ended early, in round {session.end.round}: {session.end.reason}")
        print(f"run {arguments.run} completed after round {session.end.round}")

    asyncio.run(until_told_to_stop(take_part()))


def _line(telemetry: "Telemetry") -> str:
    """Say what a round brought."""
    last = telemetry.evaluations[-1] if telemetry.evaluations else None
    judged = f", accuracy {last.accuracy:.4f}" if last is not None and last.accuracy == last.accuracy else ""
    outcome = "not asked" if telemetry.outcome == "idle" else telemetry.outcome
    return f"round {telemetry.round}: {outcome}{judged}" + (f" ({telemetry.detail})" if telemetry.detail else "")


def _pace(arguments: argparse.Namespace) -> dict[str, int]:
    """Return chunk size and keepalive as given, or as the rates ask for; raises `ConfigError` for impossible ones."""
    from edge_client.errors import ConfigError
    from edge_client.protocol.chunks import MAX_CHUNK
    from edge_client.transport import pacing

    for option, rate in (("--up-rate", arguments.up_rate), ("--down-rate", arguments.down_rate)):
        if not 0 <= rate <= MAX_RATE:
            raise ConfigError(f"{option} {rate:g}: give bits per second, from 1 to {MAX_RATE:g}, or 0 for unknown")
    slowest = pacing.slowest(arguments.up_rate, arguments.down_rate)
    chunk = pacing.chunk_size(slowest) if arguments.chunk_size is None else arguments.chunk_size
    if not pacing.MIN_CHUNK <= chunk <= MAX_CHUNK:
        raise ConfigError(f"--chunk-size {chunk}: give {pacing.MIN_CHUNK} to {MAX_CHUNK} bytes")
    needed = pacing.keepalive(slowest, chunk)
    keepalive = needed if arguments.keepalive is None else arguments.keepalive
    if not 1 <= keepalive <= pacing.MAX_KEEPALIVE:
        raise ConfigError(f"--keepalive {keepalive}: give 1 to {pacing.MAX_KEEPALIVE} seconds")
    return {"keepalive": keepalive, "chunk_size": chunk}


if __name__ == "__main__":
    raise SystemExit(main())
