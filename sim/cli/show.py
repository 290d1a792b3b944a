"""`gca datasets`, `gca links`, `gca hardware`: look at what a study can be made of."""

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from sim.cli.options import DataDir
from sim.screen.units import HARDWARE_UNITS, LINK_UNITS, RADIO_UNITS

Json = Annotated[bool, typer.Option("--json", help="print JSON")]


def datasets(data_dir: DataDir = None, json_: Json = False) -> None:
    """List the datasets, and where their files are.

    Example: gca datasets --data-dir ~/data
    """
    from sim.data.catalogue import describe

    found = describe(data_dir)
    if json_:
        _print_json(map(_plain, found))
        return
    _table([
        {"name": one.name, "normals": f"{one.train_rows:,}", "test": f"{one.test_rows:,}", "d_x": one.input_dim,
         "state": one.state, "licence": one.licence} for one in found
    ])  # fmt: skip
    print()
    for one in found:  # below the table, where no address is cut off
        for path in one.where:
            print(f"{one.name}: {path}")
        for line in (one.problem, one.remark, f"absent; its home is {one.home}" if one.state == "absent" else ""):
            print(f"{one.name}: {line}\n" if line else "", end="")
    if any(one.state == "absent" for one in found):
        print("\nA study that needs an absent one fetches it, or says where to put it by hand.")


def links(
    name: Annotated[str | None, typer.Argument(help="one profile, with the source of each figure")] = None,
    json_: Json = False,
) -> None:
    """List the link profiles, or one with the source of each figure.

    Example: gca links nbiot-nb2-peak
    """
    from sim.costs.energy import per_megabyte
    from sim.links.profiles import downlink, link, profiles, uplink

    chosen = [link(name)] if name else list(profiles().values())
    if json_:
        _print_json(map(_plain, chosen))
    elif name:
        _detail(chosen[0], LINK_UNITS)
        _radio_detail(chosen[0].radio)
    else:
        _table([
            {"name": one.name, "up kbit/s": _kilo(uplink(one).sustained),
             "down kbit/s": _kilo(downlink(one).sustained), "RTT s": f"{one.rtt:g}",
             **{f"J/MB {way}": _figure(joules) for way, joules in zip(("up", "down"), per_megabyte(one), strict=True)}}
            for one in chosen
        ])  # fmt: skip
        for one in chosen:
            print(f"{one.name}: {one.price:g} EUR/MB\n" if one.price is not None else "", end="")
        if all(one.price is None for one in chosen):
            print("\nEUR/MB: unknown for all of them")
        print("What a link stands for, and the source of each figure: gca links NAME")


def hardware(
    name: Annotated[
        str | None,
        typer.Argument(help='one board, with the source of each figure, or "calibrate": measure this machine'),
    ] = None,
    board: Annotated[str, typer.Option("--name", help="what to call this machine once it is measured")] = "here",
    json_: Json = False,
) -> None:
    """List the boards, or measure this machine as one.

    Examples:

      gca hardware pi-zero-2-w

      gca hardware calibrate --name my-pi >> boards.toml; GCA_HARDWARE=boards.toml gca simulate --hardware my-pi
    """
    from sim.config import hardware as boards

    if name == "calibrate":
        _calibrate(board)
        return
    chosen = [boards.hardware(name)] if name else list(boards.hardwares().values())
    if json_:
        _print_json(map(_plain, chosen))
    elif name:
        _detail(chosen[0], HARDWARE_UNITS)
    else:
        _table([
            {"name": one.name, "cores": one.cores or "-", "slowdown": one.slowdown or "-",
             "idle W": one.idle_power or "-", "active W": one.active_power or "-", "note": one.note} for one in chosen
        ])  # fmt: skip


def _calibrate(board: str) -> None:
    from edge_client.errors import ConfigError
    from sim.fleet.calibration import board_entry

    if not re.fullmatch(r"[A-Za-z0-9_-]+", board):
        raise ConfigError(f"--name {board!r}: use letters, digits, '_' and '-'")
    print(board_entry(board))


def _radio_detail(name: str | None) -> None:
    """Print the power of a link's radio, or that nobody gave it."""
    from sim.config.hardware import radio

    if name is None:
        print("radio: power unknown")
    else:
        _detail(radio(name), RADIO_UNITS)


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _kilo(rate: float | None) -> str:
    return "unshaped" if rate is None else f"{rate / 1000:g}"


def _known(name: str, figure: float | None, unit: str) -> str:
    if figure is None:
        return "as it is here" if name == "host" else "unshaped" if unit == "bit/s" else "unknown"
    return f"{figure:,.12g} {unit}".rstrip()


def _plain(value: Any) -> dict[str, Any]:
    import msgspec

    tree = msgspec.to_builtins(value, builtin_types=(), enc_hook=str)
    plain: dict[str, Any] = tree
    return plain


def _print_json(values: Iterable[Any]) -> None:
    print(json.dumps(list(values)))


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from sim.screen.narrow import show

    table = Table(*rows[0].keys(), box=None)
    table.columns[0].no_wrap = True
    table.columns[0].overflow = "fold"
    for row in rows:
        table.add_row(*(", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in row.values()))
    show(table, Console())


def _detail(value: Any, units: dict[str, str]) -> None:
    """Print every figure with its unit, how it is known, and from where."""
    print(f"{value.name}: {value.note}")
    for field, unit in units.items():
        figure, origin = getattr(value, field), value.provenance.get(field)
        known = f"  [{origin.tag}] {origin.note} {' '.join(origin.sources)}".rstrip() if origin else ""
        print(f"  {field:<15} {_known(value.name, figure, unit)}{known}")
