"""`gca doctor`: is this machine, and this broker, fit?

Like `gca device` it needs nothing but the standard library to begin with: what is missing is what it is asked for.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from edge_client.arguments import Parser, add_credentials
from edge_client.transport.endpoint import endpoint

TO_CONNECT = ("msgspec", "aiomqtt", "paho-mqtt")
"""What it takes to ask a broker."""
EXAMPLE = """examples:
  gca doctor
  gca doctor --broker mqtt://192.168.1.10
  GCA_PASSWORD=... gca doctor --broker mqtts://broker.local --ca-file certs/ca.crt --username pi-1

Exit code 3 if something that is needed is missing. A broker that knows its users is asked under a device's name.
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    command = Parser("gca doctor", "Check this machine, and a broker if one is named.", EXAMPLE)
    add = command.add_argument
    add("--broker", metavar="URL", help="also probe this broker: mqtt://HOST:PORT or mqtts://HOST:PORT")
    add_credentials(command, "user name at the broker; the password is GCA_PASSWORD")
    add("--data-dir", type=Path, metavar="FOLDER", help="folder with the datasets' files")
    add("--json", action="store_true", help="print JSON")
    return command


def main(argv: Sequence[str]) -> int:
    """Print one line for each check; return 0, or 3 if something that is needed is missing."""
    from sim.doctor import Finding, examine_machine

    arguments = parser().parse_args(argv)
    where = None if arguments.broker is None else endpoint(
        arguments.broker, username=arguments.username, password=os.environ.get("GCA_PASSWORD"),
        ca_file=arguments.ca_file, cert_file=arguments.cert, key_file=arguments.key,
    )  # fmt: skip
    findings = examine_machine(arguments.data_dir)
    if where is not None:
        if any(one.what in TO_CONNECT and one.state != "ok" for one in findings):
            findings.append(Finding("broker", "missing", "not looked at without the packages above"))
        else:
            from sim.broker_check import examine_broker

            findings += asyncio.run(examine_broker(where))
    if arguments.json:
        print(json.dumps([vars(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:<8} {finding.what:<17} {finding.detail}")
    return 3 if any(finding.state == "missing" for finding in findings) else 0
