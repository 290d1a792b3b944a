"""`gca simulate`: the main job, from a configuration to a study with its summary."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

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
    config: Annotated[str, typer.Argument(help="a TOML file, or the name of a packaged study")] = "demo",
    devices: Annotated[int | None, typer.Option(help="number of emulated devices")] = None,
    rounds: Annotated[int | None, typer.Option(help="global rounds R")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of everything random")] = None,
    method: Annotated[str | None, typer.Option(help="federated method")] = None,
    dataset: Annotated[str | None, typer.Option(help="dataset, see `gca datasets`")] = None,
    link: Annotated[str | None, typer.Option(help="link, see `gca links`, or UP/DOWN/RTT; a,b go round")] = None,
    hardware: Annotated[str | None, typer.Option(help="board to emulate, see `gca hardware`; a,b go round")] = None,
    isolation: Annotated[str | None, typer.Option(help="devices as processes, or as tasks of one process")] = None,
    clock: Annotated[str | None, typer.Option(help="real, or virtual: as fast as the arithmetic allows")] = None,
    broker: Annotated[str | None, typer.Option(help="embedded, mqtt://HOST:PORT or mqtts://HOST:PORT")] = None,
    username: Annotated[
        str | None, typer.Option(help="user name at a real broker; the password is GCA_PASSWORD")
    ] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of the CA that signed the broker's certificate")] = None,
    cert: Annotated[str | None, typer.Option(help="PEM file of a certificate for brokers that ask who we are")] = None,
    key: Annotated[str | None, typer.Option(help="PEM file of its key")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any key, as training.latent_dim=8")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="folder with the datasets' files")] = None,
    output: Annotated[Path | None, typer.Option(help="folder for the study (default: a new one in studies/)")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="STUDY", help="go on with the study in this folder, which was stopped")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
    start_order: Annotated[str, typer.Option(hidden=True, help="named or reversed: no result depends on it")] = "named",
    quiet: Annotated[bool, typer.Option(help="print only the summary")] = False,
) -> None:
    """Run a study on emulated devices behind shaped links.

    Prints accuracy per round and exactly what it cost; the study's folder holds everything else.
    """
    from sim.config import load_study, parse_override
    from sim.devices import device_names
    from sim.studies import read_study
    from sim.words import one_or_several

    if resume is not None:
        _refuse_changes(context)
    overrides: dict[str, object] = dict(parse_override(one) for one in set_ or ())
    options = {"devices": devices, "rounds": rounds, "seed": seed, "method": method, "dataset": dataset,
               "link": one_or_several(link), "hardware": one_or_several(hardware), "isolation": isolation,
               "clock": clock, "broker": broker}  # fmt: skip
    overrides |= {name: value for name, value in options.items() if value is not None}
    study = load_study(config, overrides) if resume is None else read_study(resume)

    from rich.console import Console

    from edge_client.transport.mqtt import endpoint
    from sim.doctor import require_broker
    from sim.emulation.study import resume_study, run_study
    from sim.progress import progress
    from sim.studies import new_directory
    from sim.summary import result_json, show_summary

    real = None
    if study.broker != "embedded":
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
