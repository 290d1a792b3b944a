"""`gca attack`: what a curious server could extract from one device of a finished study."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_client.words import counted
from sim.cli.options import Json

if TYPE_CHECKING:
    from broker_server.study.records import AttackRecord

ROUTES = {
    "white_box_final": "inversion of the device's model after the last round",
    "white_box_uploaded": "inversion of the model that the device uploaded in the last round",
    "latent_only": "inversion of a surrogate learned from the device's codes alone",
    "shadow": "decoding of the device's codes by a shadow device with public records",
}


def attack(
    study: Annotated[Path, typer.Argument(help="folder of a finished study")],
    victim: Annotated[int, typer.Option(help="number of the device, from 1")] = 1,
    starts: Annotated[int, typer.Option(help="starting points, that is outputs at most")] = 100,
    steps: Annotated[int, typer.Option(help="Adam steps of each at most")] = 1000,
    model: Annotated[
        str, typer.Option(help="where parameters are shared: final, or uploaded in the last round")
    ] = "final",
    knows: Annotated[
        list[str] | None,
        typer.Option(help="records, initial-weights: more than the paper's attacker has; weights: a control"),
    ] = None,
    round: Annotated[
        int | None, typer.Option(help="a GCA device's upload of this round (default: one after the last)")
    ] = None,
    linkage: Annotated[bool, typer.Option(help="instead: link codes of one record across two rounds")] = False,
    json_: Json = False,
) -> None:
    """Attack a finished study as a curious server.

    How near does it come to a device's training records? Parameter sharing is attacked through the device's model, GCA
    through its codes. The outcome is kept in the study.

    Example: gca attack studies/magic-gca --victim 3 --knows records --knows initial-weights
    """
    from edge_client.errors import ConfigError
    from sim.attack.starts import STARTS, STEPS
    from sim.attack.study import attack_study, link_study

    if linkage:
        if knows or (starts, steps, model) != (STARTS, STEPS, "final"):
            raise ConfigError("--linkage: takes --victim and --round alone; leave the other options out")
        record = link_study(study, victim=victim, round=round)
    else:
        record = attack_study(
            study, victim=victim, starts=starts, steps=steps, model=model, knows=knows or (), round=round
        )
    if json_:
        print(json.dumps({"study": str(study)} | _json(record)))
    else:
        told = _linkage(record) if linkage else _extraction(record, one_more=round is None)
        print("\n".join([*told, *record.details["remarks"]]))


def _json(record: "AttackRecord") -> dict[str, Any]:
    figures: dict[str, Any] = {"device": record.device, "attack": record.attack, "round": record.round}
    if record.attack != "linkage":
        figures |= {
            "knows": record.knows.split("+") if record.knows else [], "starts": record.starts, "steps": record.steps,
            "ntmse": record.ntmse, "excess_cosine": record.excess_cosine,
        }  # fmt: skip
    return figures | record.details


def _extraction(record: "AttackRecord", one_more: bool) -> list[str]:
    assert record.ntmse is not None and record.excess_cosine is not None
    told, strangers = record.details, f"{counted(record.details['reference'], 'record')} that nobody trained on"
    knows = f", knowing {' and '.join(record.knows.split('+'))}" if record.knows else ""
    lines = [
        f"{record.device}, {_when(record, one_more)}: {ROUTES[record.attack]}{knows}",
        f"{counted(told['outputs'], 'output')} against {counted(told['records'], 'training record')}; "
        f"measure: {strangers}",
        f"NTMSE          {record.ntmse:9.3f}   {_than(record.ntmse, 1.0)} the records than those are",
        f"excess cosine  {record.excess_cosine:+9.3f}   "
        f"{'less' if record.excess_cosine < 0 else 'more'} alike in direction than those are",
    ]  # fmt: skip
    if paired := told.get("paired_ntmse"):
        lines += [
            f"paired NTMSE   {paired:9.3f}   {_than(paired, 1.0)} the very record behind each code than those",
            f"              {100 * told['nearer_than_strangers']:8.1f} %   of codes lead nearer to their record than "
            "the nearest of those",
        ]
    return lines


def _when(record: "AttackRecord", one_more: bool) -> str:
    """Say which upload or model was attacked; the paper's attack on codes takes `one_more` upload than the run had."""
    if record.attack.startswith("white_box"):
        return f"the model after round {record.round}"
    return f"the upload of round {record.round}" + (", one after the last" if one_more else "")


def _than(value: float, one: float) -> str:
    return "farther from" if value > one else "nearer to"


def _linkage(record: "AttackRecord") -> list[str]:
    told = record.details

    def share(linked: int) -> str:
        return f"{100 * linked / told['common']:.1f} %" if told["common"] else "undefined"

    return [
        f"{record.device}: {counted(told['common'], 'record')} uploaded in both of rounds {record.round - 1} and "
        f"{record.round}",
        f"{told['linked']} linked by their codes: {share(told['linked'])}; by chance {100 * told['chance']:.1f} %",
        f"{told['linked_in_any_rotation']} linked by what no rotation changes, their lengths and distances to the "
        f"centroids: {share(told['linked_in_any_rotation'])}",
    ]
