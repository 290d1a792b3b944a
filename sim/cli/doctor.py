"""`gca doctor`: is this machine, and this broker, fit?"""

import json
import os
from typing import Annotated

import typer


def doctor(
    broker: Annotated[str | None, typer.Option(help="also probe this broker: mqtt://HOST:PORT")] = None,
    username: Annotated[str | None, typer.Option(help="user name at the broker; the password is GCA_PASSWORD")] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of the CA that signed the broker's certificate")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check this machine, and a broker if one is named. Exit code 3 if something needed is missing.

    Example: gca doctor --broker mqtt://192.168.1.10
    """
    import asyncio

    from edge_client.transport.mqtt import endpoint
    from sim.doctor import examine_broker, examine_machine

    findings = examine_machine()
    if broker is not None:
        where = endpoint(broker, username=username, password=os.environ.get("GCA_PASSWORD"), ca_file=ca_file)
        findings += asyncio.run(examine_broker(where))
    if json_:
        print(json.dumps([vars(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.what:<17} {finding.detail}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(3)
