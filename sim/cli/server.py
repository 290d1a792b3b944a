"""`gca server`: the round coordinator and aggregation for devices on real machines."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import CaFile, Cert, Json, Key, Quiet, Rounds, settings

WAIT_S = 600.0
"""People start devices on real machines one by one."""


EMULATED = {
    "link": "their links are real",
    "hardware": "their boards are real",
    "isolation": "each is a machine of its own",
    "clock": "their clocks are real",
    "compute": "they really train",
    "broker": "--broker names it",
    "data": "they bring records of their own",
    "evaluation": "each has an --evaluate of its own",
    "participation.dropout": "they are silent when they are",
    "checkpoint_every": "each keeps its state with --state",
}
"""Keys that speak of emulated devices, and why real ones have nothing of them."""
OF_THE_RUN = ("config", "devices", "rounds", "set_", "output", "data_dir")
"""What a run that goes on has settled already."""


def server(
    context: typer.Context,
    config: Annotated[str | None, typer.Argument(help="a TOML file, or the name of a packaged study")] = None,
    broker: Annotated[str | None, typer.Option(help="mqtt://HOST:PORT or mqtts://HOST:PORT")] = None,
    run: Annotated[str | None, typer.Option(help="name of the run, the same on every device")] = None,
    devices: Annotated[int | None, typer.Option(help="how many devices to wait for")] = None,
    rounds: Rounds = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any key, as participation.deadline=120")] = None,
    output: Annotated[Path | None, typer.Option(help="folder for the study (default: studies/RUN)")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="STUDY", help="go on with the run in this folder, whose server was stopped")
    ] = None,
    username: Annotated[str | None, typer.Option(help="user name at the broker; the password is GCA_PASSWORD")] = None,
    ca_file: CaFile = None,
    cert: Cert = None,
    key: Key = None,
    wait: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="how long to wait for the devices")] = WAIT_S,
    features: Annotated[
        int | None,
        typer.Option(
            min=1, max=65536, help="width of a record; devices of another are refused [default: as most devices have]"
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="folder with the dataset's files: only devices with records as wide may join")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="answer Prometheus here, under /metrics")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="address for that; 0.0.0.0 for all")] = "127.0.0.1",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Coordinate a run for devices that join with `gca device`.

    Example: gca server paper/magic --broker mqtt://192.168.1.10 --run magic --devices 3

    After a stop: gca server --resume studies/magic --broker mqtt://192.168.1.10
    """
    from rich.console import Console

    from edge_client.errors import ConfigError
    from edge_client.protocol.messages import SERVER
    from edge_client.transport.endpoint import endpoint
    from sim.broker_check import require_broker
    from sim.config.run_plan import run_plan, server_method
    from sim.config.study import load_study
    from sim.data import load
    from sim.screen.progress import progress
    from sim.screen.summary import result_json, show_summary
    from sim.serve import Around, resume_run, serve_run
    from sim.studies import read_study

    _check(context)
    overrides = settings(set_, devices=devices, rounds=rounds)
    _refuse_emulated(overrides)
    study = load_study(str(config), overrides) if resume is None else read_study(resume)
    server_method(study)  # refuses a method that has none
    if run is not None:
        run_plan(study, run)  # refuses a bad name before a folder is named by it
    # Devices bring records of their own; where the study's are at hand too, theirs must be as wide.
    input_dim = features if data_dir is None else load(study.dataset, data_dir, seed=study.seed).input_dim
    if features not in (None, input_dim):
        raise ConfigError(f"--features {features}: records of {study.dataset} have {input_dim}; leave one of them out")
    password = os.environ.get("GCA_PASSWORD")
    where = endpoint(str(broker), username=username or (SERVER if password else None), password=password,
                     ca_file=ca_file, cert_file=cert, key_file=key)  # fmt: skip
    if metrics_port is not None:
        from sim.metrics import require_free

        require_free(metrics_host, metrics_port)
    asyncio.run(require_broker(where))
    display = progress(sys.stderr if json_ else sys.stdout, study.rounds, quiet=quiet or json_)
    around = Around(where, display, wait, None if metrics_port is None else (metrics_host, metrics_port))
    if resume is None:
        directory = output or Path("studies") / str(run)
        width = serve_run(study, str(run), directory, around, input_dim)
    else:
        directory = resume
        width = resume_run(directory, around, run, input_dim)
    if json_:
        print(json.dumps(result_json(directory)))
    else:
        show_summary(directory, study, width, Console())


def _check(context: typer.Context) -> None:
    """Raise ConfigError for what is missing, or would make another run of the one that is to go on."""
    from edge_client.errors import ConfigError

    given = {
        name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    needed = ("broker",) if "resume" in given else ("config", "broker", "run")
    for name in (one for one in needed if one not in given):
        raise ConfigError(f"{_shown(name)} is missing; see gca server --help")
    for name in (one for one in OF_THE_RUN if "resume" in given and one in given):
        raise ConfigError(f"{_shown(name)}: a run goes on as it was begun; leave it out beside --resume")


def _refuse_emulated(overrides: Mapping[str, object]) -> None:
    """Raise ConfigError for a setting that could not change anything."""
    from edge_client.errors import ConfigError

    for key in overrides:
        for section, why in EMULATED.items():
            if key == section or key.startswith(f"{section}."):
                raise ConfigError(f"--set {key}: means nothing to real devices: {why}; leave it out")


def _shown(name: str) -> str:
    return "CONFIG" if name == "config" else f"--{name.rstrip('_').replace('_', '-')}"
