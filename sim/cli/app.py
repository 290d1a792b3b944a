"""All commands under one roof, and how their errors reach a person: one line, and an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, cast

import typer

from edge_client.errors import GcaError
from sim.cli.broker import broker
from sim.cli.doctor import doctor
from sim.cli.plan import plan
from sim.cli.server import server
from sim.cli.show import datasets, hardware, links
from sim.cli.simulate import simulate

# Typer carries its own copy of click from some version on: take the class it really raises.
UsageError = cast(
    "type[typer.BadParameter]", next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")
)

app = typer.Typer(
    name="gca",
    help="Federated anomaly detection over MQTT, and what it costs in bytes and seconds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (simulate, plan, server, broker, datasets, links, hardware, doctor):
    app.command()(command)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def device(context: typer.Context) -> None:
    """Take part in a federation as one device, on this machine or a Raspberry Pi.

    Example: gca device --broker mqtt://192.168.1.10 --run magic --id pi-kitchen --data records.npz
    """
    from edge_client.__main__ import main

    raise typer.Exit(main(context.args))


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
    show_version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    if show_version:
        print(version("gca"))
        raise typer.Exit
    if debug:
        os.environ["GCA_DEBUG"] = "1"


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    words = list(arguments)
    if "--debug" in words:  # allowed anywhere
        words.remove("--debug")
        os.environ["GCA_DEBUG"] = "1"
    if words == ["--version"]:
        words += ["doctor"]  # the callback prints and exits before any command runs
    try:
        code = app(words, prog_name="gca", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except GcaError as error:
        if os.environ.get("GCA_DEBUG"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except UsageError as error:
        print(f"error: {error.format_message()}; see gca --help", file=sys.stderr)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
