"""`gca plan`: what a study will cost, before anything runs."""

import json
from pathlib import Path
from typing import Annotated

import typer


def plan(
    config: Annotated[str, typer.Argument(help="a TOML file, or the name of a packaged study")] = "demo",
    devices: Annotated[int | None, typer.Option(help="number of emulated devices")] = None,
    rounds: Annotated[int | None, typer.Option(help="global rounds R")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of everything random")] = None,
    dataset: Annotated[str | None, typer.Option(help="dataset, see `gca datasets`")] = None,
    link: Annotated[str | None, typer.Option(help="link profile, see `gca links`, or UP/DOWN/RTT")] = None,
    hardware: Annotated[str | None, typer.Option(help="board to emulate, see `gca hardware`")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any key, as training.latent_dim=8")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="folder with the datasets' files")] = None,
    json_: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Say what a study will cost in bytes, seconds, memory and file descriptors, and refuse the impossible.

    Example: gca plan paper/magic --link lte-m-hd-peak
    """
    from sim.config import load_study, parse_override
    from sim.data import load
    from sim.emulation.workload import check_machine
    from sim.plan import HOST_FLOPS, plan_study
    from sim.units import bytes_text, duration_text

    overrides: dict[str, object] = dict(parse_override(one) for one in set_ or ())
    overrides |= {"devices": devices, "rounds": rounds, "seed": seed, "dataset": dataset, "link": link,
                  "hardware": hardware}  # fmt: skip
    study = load_study(config, overrides)
    planned = plan_study(study, load(study.dataset, data_dir))
    if json_:
        print(json.dumps({
            "dataset": study.dataset, "method": study.method, "devices": study.devices, "rounds": study.rounds,
            "parameters": planned.parameters, "uploaded_codes": planned.uploaded,
            "payload_bytes": vars(planned.payload), "message_bytes": vars(planned.message),
            "wire_bytes": vars(planned.wire), "seconds_per_round": planned.seconds_per_round,
            "memory_bytes": planned.memory_bytes, "file_descriptors": planned.file_descriptors,
        }))  # fmt: skip
    else:
        both = {"payload": planned.payload, "message": planned.message, "wire (about)": planned.wire}
        print(f"{study.dataset}, {study.method}, {study.devices} devices, {study.rounds} rounds, link {study.link}")
        for name, count in both.items():
            print(f"  {name:<13} per round: up {bytes_text(count.up):>8}, down {bytes_text(count.down):>8}; "
                  f"in all {bytes_text((count.up + count.down) * study.rounds)}")  # fmt: skip
        each = planned.seconds_per_round
        parts = f"training {duration_text(planned.training_s)}, transfer {duration_text(planned.transfer_s)}"
        print(f"  time per round about {duration_text(each)} ({parts}); in all {duration_text(each * study.rounds)}")
        if study.hardware == "host":
            print(f"  training assumes {HOST_FLOPS / 1e9:g} GFLOP/s per core of this machine; evaluations come on top")
        print(f"  this machine: {bytes_text(planned.memory_bytes)} of memory, {planned.file_descriptors} descriptors")
    if study.dataset == "bank":
        _tell_of_bank()
    check_machine(study.devices)


def _tell_of_bank() -> None:
    import sys

    from sim.payload import BANK_UPLOADED_CODES, BANK_UPLOADED_CODES_PUBLISHED

    print(f"note: bank's shards upload {BANK_UPLOADED_CODES:,} codes in all at the paper's settings; the paper prints "
          f"{BANK_UPLOADED_CODES_PUBLISHED:,}, which no split it describes gives", file=sys.stderr)  # fmt: skip
