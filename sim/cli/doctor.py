"""`gca doctor`: is this machine, and this broker, fit?"""

import json
from typing import Annotated

import typer


def doctor(
    broker: Annotated[str | None, typer.Option(help="also probe this broker: mqtt://HOST:PORT")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check this machine, and a broker if one is named. Exit code 3 if something needed is missing.

    Example: gca doctor --broker mqtt://192.168.1.10
    """
    import asyncio

    from sim.doctor import examine_broker, examine_machine

    findings = examine_machine()
    if broker is not None:
        findings += asyncio.run(examine_broker(broker))
    if json_:
        print(json.dumps([vars(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.what:<17} {finding.detail}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(3)
