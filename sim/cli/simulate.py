"""`gca simulate`: the main job, from a configuration to a study with its summary."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import (
    Broker,
    CaFile,
    Cert,
    Config,
    DataDir,
    DatasetName,
    Devices,
    Hardware,
    Json,
    Key,
    Link,
    Method,
    Quiet,
    Rounds,
    Seed,
    Settings,
    settings,
)

EXAMPLES = """Examples:

  gca simulate                                          the demo: real data, 8 devices, a constrained link

  gca simulate paper/magic --rounds 3 --link 256kbit/1mbit/100ms

  gca simulate configs/paper/adult.toml --broker mqtt://127.0.0.1:1883 --json

  gca simulate --resume studies/magic-gca-20261103-101500-4711        go on with a study that was stopped
"""

OF_THE_STUDY = ("config", "devices", "rounds", "seed", "method", "dataset", "link", "hardware", "isolation", "clock",
                "broker", "set_", "output")  # fmt: skip
"""What a study that goes on has settled already."""
START_ORDERS = {"named": lambda n: range(n), "reversed": lambda n: range(n - 1, -1, -1)}


def simulate(
    context: typer.Context,
    config: Config = "demo",
    devices: Devices = None,
    rounds: Rounds = None,
    seed: Seed = None,
    method: Method = None,
    dataset: DatasetName = None,
    link: Link = None,
    hardware: Hardware = None,
    isolation: Annotated[str | None, typer.Option(help="devices as processes, or as tasks of one process")] = None,
    clock: Annotated[str | None, typer.Option(help="real, or virtual: as fast as the arithmetic allows")] = None,
    broker: Broker = None,
    username: Annotated[
        str | None, typer.Option(help="user name at a real broker; the password is GCA_PASSWORD")
    ] = None,
    ca_file: CaFile = None,
    cert: Cert = None,
    key: Key = None,
    set_: Settings = None,
    data_dir: DataDir = None,
    output: Annotated[Path | None, typer.Option(help="folder for the study (default: a new one in studies/)")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="STUDY", help="go on with the study in this folder, which was stopped")
    ] = None,
    json_: Json = False,
    start_order: Annotated[str, typer.Option(hidden=True, help="named or reversed: no result depends on it")] = "named",
    quiet: Quiet = False,
) -> None:
    """Run a study on emulated devices behind shaped links.

    Prints accuracy per round and exactly what it cost; the study's folder holds everything else.
    """
    from sim.config.devices import device_names
    from sim.config.study import load_study
    from sim.studies import read_study

    if resume is not None:
        _refuse_changes(context)
    overrides = settings(set_, devices=devices, rounds=rounds, seed=seed, method=method, dataset=dataset, link=link,
                         hardware=hardware, isolation=isolation, clock=clock, broker=broker)  # fmt: skip
    study = load_study(config, overrides) if resume is None else read_study(resume)

    from rich.console import Console

    from sim.emulation.study import resume_study, run_study
    from sim.screen.progress import progress
    from sim.screen.summary import result_json, show_summary
    from sim.studies import new_directory

    real = None
    if study.broker != "embedded":
        from edge_client.transport.endpoint import endpoint
        from sim.broker_check import require_broker

        password = os.environ.get("GCA_PASSWORD")
        real = endpoint(study.broker, username=username, password=password, ca_file=ca_file, cert_file=cert,
                        key_file=key)  # fmt: skip
        asyncio.run(require_broker(real))
    directory = resume or output or new_directory(study.dataset, study.method)
    display = progress(sys.stderr if json_ else sys.stdout, study.rounds, quiet=quiet or json_,
                       devices=device_names(study))  # fmt: skip
    order = START_ORDERS[start_order](study.devices)
    if resume is None:
        width = run_study(study, directory, display, data_dir, order, real)
    else:
        width = resume_study(directory, display, data_dir, order, real)
    if json_:
        print(json.dumps(result_json(directory)))
    else:
        show_summary(directory, study, width, Console())


def _refuse_changes(context: typer.Context) -> None:
    """Raise ConfigError for what would make another study of the one that is to go on."""
    from edge_client.errors import ConfigError

    given = (name for name in OF_THE_STUDY if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE")
    if (name := next(given, None)) is not None:
        option = "CONFIG" if name == "config" else f"--{name.rstrip('_')}"
        raise ConfigError(f"{option}: a study goes on as it was begun; leave it out beside --resume, or begin another")
