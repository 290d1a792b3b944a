"""`gca device`: one device against a broker. Needs nothing but floor 1, so it runs as it is on a Raspberry Pi."""

import argparse
import os
import sys
import traceback
from asyncio import CancelledError
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.arguments import Parser, add_credentials
from edge_client.errors import ConfigError, EnvironmentFault, GcaError
from edge_client.words import counted

if TYPE_CHECKING:
    import numpy as np

    from edge_client.data.csv_records import Columns
    from edge_client.data.records import Records
    from edge_client.data.scaler import Scaler
    from edge_client.protocol.messages import Telemetry

# Before numpy is imported: local training gains nothing from more BLAS threads, and results must not depend on them.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

MAX_RATE = 1e15
"""Bits per second; what a message can carry."""
EXAMPLE = """examples:
  gca device --broker mqtt://192.168.1.10 --run magic --id pi-kitchen --data records.npz
  gca device --broker mqtt://192.168.1.10 --run pumps --id pi-1 --csv pump.csv --label state --normal ok
  gca device --csv pump.csv --label state --normal ok --write-scaler pumps.json; then --scaler pumps.json on each device

records.npz holds an array `samples` of shape (records, features): normal records, standardised as on every other
device of the run; optionally `test` and `labels` (1 = anomaly) to evaluate on. A CSV file is standardised here, with
this device's own means and deviations or with those of a --scaler that all devices share; it trains on the first four
fifths of the normal records. The password is read from GCA_PASSWORD.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    command = Parser("gca device", "Take part in a federation as one device.", EXAMPLE)
    add = command.add_argument
    add("--broker", metavar="URL", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    add("--run", help="name of the run, as the server has it")
    add("--id", help="this device's name, unique in the run")
    records = command.add_mutually_exclusive_group(required=True)
    records.add_argument("--data", type=Path, metavar="FILE.npz", help="this device's records")
    records.add_argument("--csv", type=Path, metavar="FILE.csv", help="this device's records, under column names")
    add("--label", metavar="COLUMN", help="column of the CSV file that says which records are normal (default: all)")
    add("--normal", metavar="VALUE", help="what it holds for those (default 0)")
    add("--drop", metavar="COLUMNS", action="append", help="columns to leave out, as a,b; may be given several times")
    add("--scaler", type=Path, metavar="FILE", help="standardise the CSV file with these means and deviations")
    add("--write-scaler", type=Path, metavar="FILE", help="write the CSV file's means and deviations and exit")
    add_credentials(command, "user name at the broker; default: the device's name when GCA_PASSWORD is set")
    add("--up-rate", type=_rate, default=0.0, metavar="BIT/S", help="uplink of this device, if known")
    add("--down-rate", type=_rate, default=0.0, metavar="BIT/S", help="downlink of this device, if known")
    add("--keepalive", type=int, metavar="S", help="MQTT keepalive (default: from the rates, 60 if unknown)")
    add("--chunk-size", type=int, metavar="BYTES",
        help="most bytes of an upload in one message (default: from the rates, 65536 if unknown)")  # fmt: skip
    add(
        "--evaluate",
        choices=("epoch", "phase", "round", "never"),
        default="round",
        help="when to judge the model (default round)",
    )
    add("--secret", type=Path, metavar="FILE",
        help="16 to 64 random bytes that all devices share and the server has not, for rotated codes")  # fmt: skip
    add("--state", type=Path, metavar="FOLDER",
        help="keep the device's state here after every round, and go on from it after a stop")  # fmt: skip
    add("--model", type=Path, metavar="FILE.npz", help="where to write the final model's parameters")
    add("--debug", action="store_true", help="show the traceback of an error")
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one device to the end of its run; return the exit code."""
    debug = bool(os.environ.get("GCA_DEBUG"))
    try:
        command = parser()
        arguments = command.parse_args(argv)
        debug = debug or arguments.debug
        _check(command, arguments)
        _write_scaler(arguments) if arguments.write_scaler else _run(arguments)
        sys.stdout.flush()
    except (KeyboardInterrupt, CancelledError):  # cancelled: SIGTERM, the same as Ctrl-C
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, GcaError):
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        fault = f"a fault in gca itself: {type(error).__name__}: {error}"
        print(f"error: {fault}; run it again with --debug and report it", file=sys.stderr)
        return 1
    return 0


def _check(command: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Raise `ConfigError` unless the options go together."""
    if arguments.csv is None:
        for option in ("label", "normal", "drop", "scaler", "write_scaler"):
            if getattr(arguments, option) is not None:
                command.error(f"--{option.replace('_', '-')} belongs to a CSV file: give --csv")
    if arguments.normal is not None and arguments.label is None:
        command.error("--normal is a value of the label column: give --label")
    if arguments.scaler and arguments.write_scaler:
        command.error("--scaler and --write-scaler: give one of them")
    needed = [] if arguments.write_scaler else ["broker", "run", "id"]
    if absent := [f"--{option}" for option in needed if getattr(arguments, option) is None]:
        command.error(f"the following arguments are required: {', '.join(absent)}")


def _write_scaler(arguments: argparse.Namespace) -> None:
    from edge_client.data.csv_records import load_csv
    from edge_client.data.scaler import write_scaler

    _, scaler, told = load_csv(arguments.csv, _columns(arguments))
    write_scaler(arguments.write_scaler, scaler)
    print(f"{arguments.csv}: {told}")
    print(
        f"{arguments.write_scaler}: means and deviations of {counted(len(scaler.columns), 'column')} of {arguments.csv}"
    )


def _columns(arguments: argparse.Namespace) -> "Columns":
    from edge_client.data.csv_records import Columns

    return Columns(arguments.label, "0" if arguments.normal is None else arguments.normal, tuple(arguments.drop or ()))


def _records(arguments: argparse.Namespace) -> "tuple[Records, Scaler | None]":
    """Return this device's records and the scaler that it was given, saying what was made of a CSV file."""
    from edge_client.data.csv_records import load_csv
    from edge_client.data.records import load_records
    from edge_client.data.scaler import read_scaler

    if arguments.csv is None:
        return load_records(arguments.data), None
    scaler = read_scaler(arguments.scaler) if arguments.scaler else None
    records, _, told = load_csv(arguments.csv, _columns(arguments), scaler)
    _say(f"{arguments.csv}: {told}; standardised with {arguments.scaler or 'its own means and deviations'}")
    return records, scaler


def _say(line: str) -> None:
    """Tell a person something at once, also where the output is a pipe, as under systemd."""
    print(line, flush=True)


def _run(arguments: argparse.Namespace) -> None:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import replace

    import msgspec

    from edge_client.clock import RealClock
    from edge_client.conversation.identity import Identity
    from edge_client.conversation.session import Session
    from edge_client.conversation.silence import tell_of_silence
    from edge_client.device import Device, live
    from edge_client.kept_state import kept_state, origin
    from edge_client.offload import into
    from edge_client.private_seeds import Secrets, read_secret
    from edge_client.protocol.messages import COMPLETED, SERVER, Name, Telemetry
    from edge_client.seeds import stream
    from edge_client.stopping import until_told_to_stop
    from edge_client.transport.endpoint import endpoint
    from edge_client.transport.mqtt import connector

    for option, value in (("--run", arguments.run), ("--id", arguments.id)):
        try:
            msgspec.convert(value, Name)
        except msgspec.ValidationError:
            raise ConfigError(f"{option} {value!r}: use 1 to 64 letters, digits, '.', '_' or '-'") from None
    if arguments.id == SERVER:
        raise ConfigError(f"--id {SERVER}: that is the server's own name; give this device another")
    pace = _pace(arguments)
    if arguments.model is not None and not os.access(arguments.model.parent, os.W_OK):  # not after hours of training
        raise EnvironmentFault(
            f"{arguments.model}: cannot be written there; give a file in a folder of yours as --model"
        )
    records, scaler = _records(arguments)
    shared = read_secret(arguments.secret) if arguments.secret else None
    password = os.environ.get("GCA_PASSWORD")
    username = arguments.username or (arguments.id if password else None)
    where = endpoint(arguments.broker, username=username, password=password, ca_file=arguments.ca_file,
                     cert_file=arguments.cert, key_file=arguments.key)  # fmt: skip
    # Last: it sets aside what does not fit, which a device that is refused for another option must not do.
    made_from = origin(records, scaler)
    state = kept_state(arguments.state, arguments.run, arguments.id, made_from, _say) if arguments.state else None
    secrets = Secrets(state.secret if state else os.urandom(32), shared)
    samples, width = records.samples.shape
    who = Identity(arguments.run, arguments.id, os.urandom(4).hex(), samples, width, arguments.up_rate,
                   arguments.down_rate, **pace)  # fmt: skip

    async def take_part() -> None:
        kept = state.kept if state else None
        session = Session(who, connector(where), RealClock(), stream(0, "backoff", 0, arguments.id), _say,
                          kept.seq if kept else 0, state.unsure_of if state else None)  # fmt: skip

        async def report(telemetry: Telemetry) -> None:
            if not (session.end and telemetry.detail == session.end.reason):  # that of the end is told below
                _say(_line(telemetry))
            await session.report(telemetry)

        with ThreadPoolExecutor(1) as pool:
            device = Device(records, session, RealClock(), into(pool), report, arguments.evaluate, secrets=secrets)
            if state is not None:
                device = replace(device, keep=state.save, keeps_start=True, resume=state.resume,
                                 remark=state.why_anew)  # fmt: skip
            if state is not None and kept is not None:
                _say(f"{arguments.id}: goes on after round {kept.round}, from {state.path}")
            shape = f"{counted(samples, 'record')} of {counted(width, 'feature')}"
            _say(f"{arguments.id}: {shape}, broker {where}, run {arguments.run}")
            patience = asyncio.create_task(tell_of_silence(session, RealClock(), str(where), _say))
            try:
                ended = await live(device)
            finally:
                patience.cancel()
        if arguments.model is not None:
            _write_model(arguments.model, ended.parameters)
        assert session.end is not None
        if session.end.reason != COMPLETED:
            raise GcaError(
                f"run {arguments.run} ended early, in round {session.end.round}: {session.end.reason}; when the server "
                "has begun it anew, start this device again"
            )
        if state is not None:
            state.drop()
        print(f"run {arguments.run} completed after round {session.end.round}")

    asyncio.run(until_told_to_stop(take_part()))


def _write_model(path: Path, parameters: "np.ndarray") -> None:
    import io

    import numpy as np

    from edge_client.atomic import write_atomically

    content = io.BytesIO()
    np.savez(content, parameters=parameters)
    write_atomically(path, content.getvalue(), "model")


def _line(telemetry: "Telemetry") -> str:
    """Say what a round brought."""
    last = telemetry.evaluations[-1] if telemetry.evaluations else None
    judged = f", accuracy {last.accuracy:.4f}" if last is not None and last.accuracy == last.accuracy else ""
    outcome = "not asked" if telemetry.outcome == "idle" else telemetry.outcome
    return f"round {telemetry.round}: {outcome}{judged}" + (f" ({telemetry.detail})" if telemetry.detail else "")


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; give bits per second, such as 20000") from None


def _pace(arguments: argparse.Namespace) -> dict[str, int]:
    """Return chunk size and keepalive as given, or as the rates ask for; raises `ConfigError` for impossible ones."""
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
