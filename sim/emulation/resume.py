"""Where a study goes on whose program was killed.

Each device keeps its state after a round in `states/`; the server writes the round to the store, and to `rounds/` what
it broadcast and where the run stood. A study goes on after the last round of which all of that is there, and whole;
what was written down of later rounds is forgotten. Nothing else needs keeping: all randomness derives from (seed,
purpose, round, device).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from broker_server.study.start import Start, load_start
from broker_server.study.store import FILE, StudyStore
from edge_client.data.records import load_records
from edge_client.errors import EnvironmentFault
from sim.config.devices import device_names
from sim.config.study import Study
from sim.data.partition import device_name
from sim.emulation.states import kept_rounds, load_state
from sim.emulation.workload import Shard
from sim.studies import STUDY, alone


def held(directory: Path) -> AbstractContextManager[None]:
    """Hold a study for the length of the block; raises `EnvironmentFault` if another program has it."""
    return alone(directory, by=directory / STUDY)


def has_begun(directory: Path) -> bool:
    """Whether a run was begun: then all that it needs is in the folder."""
    if not StudyStore.is_made(directory):
        return False
    with StudyStore.open(directory) as store:
        return bool(store.rows("SELECT 1 FROM runs"))


def clear(directory: Path) -> None:
    """Make room for a run where one was stopped before it began."""
    for path in directory.glob(f"{FILE}*"):
        path.unlink()
    (directory / "models").mkdir(exist_ok=True)


def written_shards(study: Study, directory: Path) -> tuple[tuple[Shard, ...], Path, int]:
    """Return the devices' records on disk, the test set, and the width of a record; raises `GcaError` if any are not
    as they were written."""
    folder, width, shards = directory / "shards", 0, []
    for number in range(1, study.devices + 1):
        path = folder / f"{device_name(number)}.npz"
        samples, width = load_records(path).samples.shape
        shards.append(Shard(device_name(number), samples, path))
    return tuple(shards), folder / "test.npz", width


def find_start(study: Study, directory: Path, store: StudyStore, run: int) -> Start:
    """Return where a study can go on: after the last round of which everything is there, else at the beginning."""
    devices, networked = device_names(study), not study.is_local
    for round in kept_rounds(directory):
        if not store.is_whole(run, round, len(devices), networked=networked):
            continue
        try:
            _check_states(directory, round, devices)
            return load_start(directory, round) if networked else Start(round, seconds=store.published_s(run, round))
        except EnvironmentFault:
            continue  # torn, or damaged: there may be an older one
    return Start()


def _check_states(directory: Path, round: int, devices: Sequence[str]) -> None:
    for device in devices:
        load_state(directory, round, device)


def forget_later(directory: Path, completed: int) -> None:
    """Delete the broadcasts of rounds that will be run again."""
    for path in (directory / "rounds").glob("*.safetensors"):
        if int(path.stem) > completed:
            path.unlink()
