"""What one emulated device costs: memory of its process, and seconds to start many.

    python -m benchmarks.footprint [DEVICES] [STUDY]

The study is "demo" unless named; "paper/fashion_mnist" has devices with torch. Private memory is what a further
device adds; resident memory includes pages shared with the fork server.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from broker_server.study.store import StudyStore
from sim.config.run_plan import run_plan
from sim.config.study import load_study
from sim.data import load
from sim.emulation.federation import run
from sim.emulation.journal import Journal
from sim.emulation.runs import Federation
from sim.emulation.workload import write_shards
from sim.screen.progress import Quiet


class Watch(Quiet):
    """Reads the devices' memory while they train."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.started_s = 0.0
        self.kilobytes: list[tuple[int, int]] = []

    def round_opened(self, round: int, devices: int) -> None:
        if round == 1:
            self.started_s = time.monotonic() - self.began

    def uploaded(self, device: str) -> None:
        self.kilobytes = [memory for memory in map(_memory, Path("/proc").iterdir()) if memory is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="?", type=int, default=20)
    parser.add_argument("study", nargs="?", default="demo")
    chosen = parser.parse_args()
    devices, name = chosen.devices, chosen.study
    study = load_study(name, {"devices": devices, "rounds": 3 if name == "demo" else 1, "link": "none",
                              "isolation": "process", "training.recon_epochs": 1, "training.align_epochs": 1,
                              "training.upload_fraction": 1.0, "clustering.initialisations": 1,
                              "data.minimum_records": 1})  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "models").mkdir()
        shards, test = write_shards(study, load(study.dataset, seed=study.seed), directory / "shards")
        watch = Watch()
        with StudyStore.create(directory) as store:
            plan = run_plan(study, "footprint")
            journal = Journal(store, store.begin_run(plan, devices, study.dataset), watch)
            asyncio.run(run(Federation(study, plan, shards, test, directory), journal))
    private, resident = zip(*watch.kilobytes, strict=True)
    print(f"{len(private)} device processes, all joined after {watch.started_s:.1f} s")
    print(f"private MB: largest {max(private) / 1000:.1f}; resident MB: largest {max(resident) / 1000:.1f}")


def _memory(process: Path) -> tuple[int, int] | None:
    """Return (private, resident) kB of a device's process; None for any other."""
    try:
        if not (process / "comm").read_text().startswith("dev-"):
            return None
        fields = dict(line.split(":") for line in (process / "smaps_rollup").read_text().splitlines()[1:])
    except (OSError, ValueError):
        return None
    kilobytes = {name: int(value.split()[0]) for name, value in fields.items()}
    return kilobytes["Private_Clean"] + kilobytes["Private_Dirty"], kilobytes["Rss"]


if __name__ == "__main__":
    main()
