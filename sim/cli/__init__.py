"""The `gca` command. `gca device` needs nothing but floor 1; every other command is one of `app.py`."""

import sys

MISSING = "this command needs more than a device has; install it with: pip install 'gca[sim]'"


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed run, 2 usage or config, 3 environment, 130 Ctrl-C."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["device"]:
        from edge_client.__main__ import main as device

        raise SystemExit(device(arguments[1:]))
    try:
        from sim.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "click", "rich"):
            raise
        print(f"error: {MISSING} (there is no {error.name})", file=sys.stderr)
        raise SystemExit(3) from None
    raise SystemExit(run(arguments))
