"""All commands under one roof, and how their errors reach a person: one line, and an exit code."""

import os
import sys
import traceback
from asyncio import CancelledError
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, cast

import typer

from edge_client.errors import GcaError
from sim.cli import needs
from sim.cli.attack import attack
from sim.cli.broker import broker
from sim.cli.certs import certs
from sim.cli.export import export
from sim.cli.plan import plan
from sim.cli.report import report
from sim.cli.reproduce import reproduce
from sim.cli.server import server
from sim.cli.show import datasets, hardware, links
from sim.cli.simulate import EXAMPLES, simulate
from sim.cli.sweep import compare, sweep

# Typer carries its own copy of click from some version on: take the class it really raises.
UsageError = cast(
    "type[typer.BadParameter]", next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")
)
INTERRUPTED = 130
OWN = ("sim", "broker_server", "edge_client", "configs")

app = typer.Typer(
    name="gca",
    help="Federated anomaly detection over MQTT, and what it costs in bytes and seconds.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
AS_THEY_ARE: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}, "add_help_option": False,
}  # fmt: skip
"""For commands that read their words themselves, because they must do without Typer."""

app.command(epilog=EXAMPLES)(simulate)
for command in (
    plan, report, export, compare, sweep, reproduce, attack, server, broker, certs, datasets, links, hardware
):  # fmt: skip
    app.command()(command)


@app.command(**AS_THEY_ARE)
def doctor(context: typer.Context) -> None:
    """Check this machine, and a broker if one is named.

    Example: gca doctor --broker mqtt://192.168.1.10
    """
    from sim.cli.doctor import main

    raise typer.Exit(main(context.args))


@app.command(**AS_THEY_ARE)
def device(context: typer.Context) -> None:
    """Take part in a federation as one device.

    Example: gca device --broker mqtt://192.168.1.10 --run magic --id pi-kitchen --data records.npz
    """
    from edge_client.__main__ import main

    raise typer.Exit(main(context.args))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gca {version('gca')}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if debug:
        os.environ["GCA_DEBUG"] = "1"


def run(words: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        code = app(list(words) or ["--help"], prog_name="gca", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # Ctrl-C, which Typer keeps to itself
            return _interrupted()
        return code if isinstance(code, int) else 0
    except UsageError as error:
        context = getattr(error, "ctx", None)
        return _fail(
            f"{error.format_message().rstrip('.')}; see {context.command_path if context else 'gca'} --help", 2
        )
    except (typer.Abort, KeyboardInterrupt, CancelledError) as end:  # cancelled: SIGTERM, the same as Ctrl-C
        return _interrupted(*map(str, end.args))
    except SystemExit as end:  # of a command that reads its words itself: --help
        return int(end.code or 0)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1  # as click answers it
    except Exception as error:
        if os.environ.get("GCA_DEBUG"):
            traceback.print_exc()
        return _explain(_alone(error), list(words))


def _interrupted(*told: str) -> int:
    print("; ".join(["interrupted", *told]), file=sys.stderr)
    return INTERRUPTED


def _explain(error: Exception, words: list[str]) -> int:
    if isinstance(error, GcaError):
        return _fail(str(error), error.exit_code)
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] not in OWN:
        return _fail(needs(words, error.name), 3)
    return _fail(f"a fault in gca itself: {type(error).__name__}: {error}; run it again with --debug and report it", 1)


def _alone(error: Exception) -> Exception:
    """Return the one error inside groups of one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _fail(text: str, code: int) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return code
