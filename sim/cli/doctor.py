"""`gca doctor`: is this machine, and this broker, fit?"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.doctor import Finding


def doctor(
    broker: Annotated[str | None, typer.Option(help="also probe this broker: mqtt://HOST:PORT")] = None,
    username: Annotated[str | None, typer.Option(help="user name at the broker; the password is GCA_PASSWORD")] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of the CA that signed the broker's certificate")] = None,
    cert: Annotated[str | None, typer.Option(help="PEM file of a certificate for brokers that ask who we are")] = None,
    key: Annotated[str | None, typer.Option(help="PEM file of its key")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="folder with the datasets' files")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check this machine, and a broker if one is named.

    Exit code 3 if something that is needed is missing.

    Example: gca doctor --broker mqtt://192.168.1.10
    """
    from sim.doctor import Finding, examine_machine

    findings = examine_machine(data_dir)
    if broker is not None and any(one.what in ("aiomqtt", "paho-mqtt") and one.state != "ok" for one in findings):
        findings.append(Finding("broker", "missing", "not looked at without the packages above"))
    elif broker is not None:
        findings += _examine(broker, username, {"ca_file": ca_file, "cert_file": cert, "key_file": key})
    if json_:
        print(json.dumps([vars(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.what:<17} {finding.detail}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(3)


def _examine(broker: str, username: str | None, files: dict[str, str | None]) -> "list[Finding]":
    import asyncio

    from edge_client.transport.mqtt import endpoint
    from sim.doctor import examine_broker

    where = endpoint(broker, username=username, password=os.environ.get("GCA_PASSWORD"), **files)
    return asyncio.run(examine_broker(where))
