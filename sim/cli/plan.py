"""`gca plan`: what a study will cost, before anything runs."""

import json
from typing import TYPE_CHECKING, Any

from edge_client.words import counted
from sim.cli.options import (
    Broker,
    Config,
    DataDir,
    DatasetName,
    Devices,
    Hardware,
    Json,
    Link,
    Method,
    Rounds,
    Seed,
    Settings,
    settings,
)

if TYPE_CHECKING:
    from sim.config.study import Study
    from sim.costs.plan import Bytes, StudyPlan


def plan(
    config: Config = "demo",
    devices: Devices = None,
    rounds: Rounds = None,
    seed: Seed = None,
    method: Method = None,
    dataset: DatasetName = None,
    link: Link = None,
    hardware: Hardware = None,
    broker: Broker = None,
    set_: Settings = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Say what a study costs, before it runs.

    Bytes, seconds, memory and file descriptors; what this machine cannot hold is refused.

    Example: gca plan paper/magic --link lte-m-hd-peak
    """
    from sim.config.study import load_study
    from sim.costs.plan import plan_study
    from sim.data import load
    from sim.emulation.workload import check_machine

    overrides = settings(set_, devices=devices, rounds=rounds, seed=seed, method=method, dataset=dataset, link=link,
                         hardware=hardware, broker=broker)  # fmt: skip
    study = load_study(config, overrides)
    planned = plan_study(study, load(study.dataset, data_dir, seed=study.seed))
    if json_:
        print(json.dumps(_json(study, planned)))
    else:
        _show(study, planned)
    check_machine(study)


def _json(study: "Study", planned: "StudyPlan") -> dict[str, Any]:
    from sim.costs.plan import warnings

    def total(count: "Bytes") -> dict[str, int]:
        return {"up": count.up * study.rounds, "down": count.down * study.rounds}

    return {
        "dataset": study.dataset, "method": study.method, "devices": study.devices, "rounds": study.rounds,
        "link": study.link, "hardware": study.hardware,
        "participants": planned.participants, "uploaded_codes": planned.uploaded, "parameters": planned.parameters,
        "payload_bytes": vars(planned.payload), "message_bytes": vars(planned.message),
        "wire_bytes": vars(planned.wire), "full_parameter_payload_bytes": vars(planned.full_exchange),
        "seconds_per_round": planned.seconds_per_round, "training_seconds": planned.training_s,
        "transfer_seconds": planned.transfer_s, "evaluation_seconds": planned.evaluation_s,
        "per_megabyte": _per_megabyte(study),
        "memory_bytes": planned.memory_bytes, "file_descriptors": planned.file_descriptors,
        "total": {
            "payload_bytes": total(planned.payload), "message_bytes": total(planned.message),
            "wire_bytes": total(planned.wire), "seconds": planned.seconds_per_round * study.rounds,
        },
        "notes": list(planned.notes), "warnings": warnings(study, planned),
    }  # fmt: skip


def _per_megabyte(study: "Study") -> dict[str, dict[str, float | None]]:
    """Return what a megabyte costs on each link of a study; None is unknown."""
    from sim.config.devices import several
    from sim.costs.energy import per_megabyte
    from sim.links.profiles import link

    found = {}
    for name in dict.fromkeys(several(study.link)):
        up, down = per_megabyte(profile := link(name))
        found[name] = {"joules_up": up, "joules_down": down, "eur": profile.price}
    return found


def _show(study: "Study", planned: "StudyPlan") -> None:
    from sim.config.devices import in_short
    from sim.costs.plan import warnings
    from sim.screen.units import bytes_text, duration_text

    print(f"{study.dataset}, {study.method}, {counted(study.devices, 'device')}, {planned.participants} in a round, "
          f"{counted(study.rounds, 'round')}")  # fmt: skip
    print(f"link {in_short(study.link)}, hardware {in_short(study.hardware)}\n")
    print(f"{'all devices':<24}{'up':>10}{'down':>10}{'all rounds':>14}")
    for name, count in {
        "payload: tensors alone": planned.payload,
        "message: msgpack bodies": planned.message,
        "wire: with TCP/IP, about": planned.wire,
        "full parameters, payload": planned.full_exchange,
    }.items():
        total = (count.up + count.down) * study.rounds
        print(f"{name:<24}{bytes_text(count.up):>10}{bytes_text(count.down):>10}{bytes_text(total):>14}")
    each = planned.seconds_per_round
    print(f"\na round takes about {duration_text(each)}: training {duration_text(planned.training_s)}, transfer "
          f"{duration_text(planned.transfer_s)}; all rounds {duration_text(each * study.rounds)}")  # fmt: skip
    print(f"evaluations on this machine come on top: {duration_text(planned.evaluation_s)} a round")
    print(f"this machine needs {bytes_text(planned.memory_bytes)} of memory and {planned.file_descriptors} file "
          "descriptors")  # fmt: skip
    for name, costs in _per_megabyte(study).items():
        up, down, eur = (None if cost is None else f"{cost:.3g}" for cost in costs.values())
        radio = "unknown" if up is None is down else f"{up or 'unknown'} J up, {down or 'unknown'} J down"
        price = "unknown" if eur is None else f"{eur} EUR"
        print(f"a megabyte on {name}: radio {radio}; price {price} (sources: gca links {name})")
    for note in planned.notes:
        print(f"note: {note}")
    for warning in warnings(study, planned):
        print(f"warning: {warning}")
