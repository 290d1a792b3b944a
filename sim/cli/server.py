"""`gca server`: the round coordinator and aggregation for devices on real machines."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def server(
    config: Annotated[str, typer.Argument(help="a TOML file, or the name of a packaged study")],
    broker: Annotated[str, typer.Option(help="mqtt://HOST:PORT or mqtts://HOST:PORT")],
    run: Annotated[str, typer.Option(help="name of the run, the same on every device")],
    devices: Annotated[int | None, typer.Option(help="how many devices to wait for")] = None,
    rounds: Annotated[int | None, typer.Option(help="global rounds R")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any key, as participation.deadline=120")] = None,
    output: Annotated[Path | None, typer.Option(help="folder for the study (default: studies/RUN)")] = None,
    username: Annotated[str | None, typer.Option(help="user name at the broker; the password is GCA_PASSWORD")] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of the CA that signed the broker's certificate")] = None,
    quiet: Annotated[bool, typer.Option(help="print only errors")] = False,
) -> None:
    """Coordinate a run for devices that join with `gca device`.

    Example: gca server paper/magic --broker mqtt://192.168.1.10 --run magic --devices 3
    """
    from edge_client.protocol.messages import SERVER
    from edge_client.transport.mqtt import endpoint
    from sim.config import load_study, parse_override
    from sim.doctor import require_broker
    from sim.progress import progress
    from sim.run_plan import run_plan
    from sim.serve import serve_run
    from sim.studies import make_directory

    overrides: dict[str, object] = dict(parse_override(one) for one in set_ or ())
    study = load_study(config, overrides | {"devices": devices, "rounds": rounds})
    plan = run_plan(study, run)  # refuses a bad name before a folder is named by it
    password = os.environ.get("GCA_PASSWORD")
    where = endpoint(broker, username=username or (SERVER if password else None), password=password, ca_file=ca_file)
    asyncio.run(require_broker(where))
    directory = make_directory(output or Path("studies") / run)
    serve_run(study, plan, where, directory, progress(sys.stdout, study.rounds, quiet=quiet))
