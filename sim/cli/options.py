"""Options that several commands have, each written once, and what they make of a study."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[str, typer.Argument(help="a TOML file, or the name of a packaged study")]
Devices = Annotated[int | None, typer.Option(help="number of emulated devices")]
Rounds = Annotated[int | None, typer.Option(help="global rounds R")]
Seed = Annotated[int | None, typer.Option(help="seed of everything random")]
Method = Annotated[str | None, typer.Option(help="federated method")]
DatasetName = Annotated[str | None, typer.Option(help="dataset, see `gca datasets`")]
Link = Annotated[str | None, typer.Option(help="link, see `gca links`, or UP/DOWN/RTT; a,b go round")]
Hardware = Annotated[str | None, typer.Option(help="board to emulate, see `gca hardware`; a,b go round")]
Broker = Annotated[str | None, typer.Option(help="embedded, mqtt://HOST:PORT or mqtts://HOST:PORT")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="any key, as training.latent_dim=8")]
DataDir = Annotated[Path | None, typer.Option(help="folder with the datasets' files")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
Quiet = Annotated[bool, typer.Option(help="print only the summary")]
Jobs = Annotated[int | None, typer.Option(help="studies at a time (default: one per core)")]

CaFile = Annotated[str | None, typer.Option(help="PEM file of the CA that signed the broker's certificate")]
Cert = Annotated[str | None, typer.Option(help="PEM file of a certificate for brokers that ask who we are")]
Key = Annotated[str | None, typer.Option(help="PEM file of its key")]


def settings(texts: Sequence[str] | None, **options: object) -> dict[str, object]:
    """Return what a study is to have instead of its configuration's: `--set`, and the options that were given, which
    win; a link or hardware `a,b` is a list."""
    from sim.config.study import parse_override
    from sim.screen.words import one_or_several

    found: dict[str, object] = dict(parse_override(one) for one in texts or ())
    for name, value in options.items():
        if value is not None:
            found[name] = one_or_several(str(value)) if name in ("link", "hardware") else value
    return found
