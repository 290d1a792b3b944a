"""The `gca` command. `gca device` and `gca doctor` need nothing but floor 1; every other command is one of `app.py`."""

import os
import sys


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed run, 2 usage or config, 3 environment, 130 Ctrl-C."""
    words = sys.argv[1:]
    if "--debug" in words:  # allowed before and after the command
        os.environ["GCA_DEBUG"] = "1"
        words = [word for word in words if word != "--debug"]
    if words[:1] == ["device"]:
        from edge_client.__main__ import main as device

        raise SystemExit(device(words[1:]))
    try:
        from sim.cli.app import run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "click", "rich"):
            raise
        if words[:1] == ["doctor"]:
            raise SystemExit(_doctor(words[1:])) from None
        print(f"error: {needs(words, error.name)}", file=sys.stderr)
        raise SystemExit(3) from None
    raise SystemExit(run(words))


def _doctor(words: list[str]) -> int:
    """Examine a machine that has only what a device needs, or less."""
    from edge_client.errors import GcaError
    from sim.cli.doctor import main

    try:
        return main(words)
    except GcaError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def needs(words: list[str], package: str) -> str:
    """Return the line for a command that lacks a package."""
    from edge_client.errors import pip_install

    command = " ".join(["gca", *words[:1]])
    extra = "server" if words[:1] in (["server"], ["broker"]) else "sim"
    lacking = f"{command} needs {package}, which is not installed; install all it needs: {pip_install(extra)}"
    named = words and not words[0].startswith("-")
    return lacking if named else f"{lacking}; without it there are gca device --help and gca doctor --help"
