"""Whole studies with devices as tasks: the results of device processes, determinism, and every way to end."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from end_to_end_tools import gca, wait_for
from study_rows import rows

from edge_client.errors import ConfigError, GcaError
from sim.config.study import Study, load_study
from sim.emulation import study as running
from sim.emulation.journal import Journal
from sim.emulation.runs import Federation, Finished
from sim.emulation.study import run_study
from sim.emulation.workload import TASK_BYTES, check_machine, demands
from sim.fleet.federation import run
from sim.screen.progress import Quiet

LINK = "256kbit/1mbit/40ms"


def study(**changes: Any) -> Study:
    return load_study("demo", {"rounds": 2, "link": LINK, "hardware": "pi-4b", "clock": "virtual", **changes})


def everything(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All tables but for the folder's name and the seconds that a person waited."""
    names = rows(folder, "SELECT name FROM sqlite_master WHERE type = 'table'")
    tables = {name: rows(folder, f"SELECT * FROM {name}") for (name,) in names}
    tables["runs"] = rows(folder, "SELECT completed, seconds_clock, state_sha256 FROM runs")
    return tables


def application_bytes(folder: Path) -> list[tuple[Any, ...]]:
    """What the method's messages weigh; how often a device asks where it stands may depend on timing."""
    return rows(
        folder,
        "SELECT side, round, device, direction, kind, messages, payload_bytes, message_bytes FROM transfers "
        "WHERE kind IN ('upload', 'broadcast') ORDER BY 1, 2, 3, 4, 5",
    )


EVALUATIONS = (
    "SELECT round, device, phase, epoch, loss, threshold, accuracy, auroc FROM evaluations ORDER BY 1, 2, 3, 4"
)


def test_tasks_in_either_time_end_as_processes_do(tmp_path: Path) -> None:
    """The same final models, evaluations, and bytes of uploads and broadcasts."""
    folders = []
    for isolation, clock in (("process", "real"), ("task", "real"), ("task", "virtual")):
        folder = tmp_path / f"{isolation} {clock}" / "run"  # equally named: messages name the run
        chosen = study(isolation=isolation, clock=clock, link="10mbit/10mbit/4ms", hardware="host")
        run_study(chosen, folder, Quiet())
        folders.append(folder)
    processes, *tasks = folders
    state = rows(processes, "SELECT state_sha256 FROM runs")
    assert state[0][0] is not None
    for folder in tasks:
        assert rows(folder, "SELECT state_sha256 FROM runs") == state
        assert rows(folder, EVALUATIONS) == rows(processes, EVALUATIONS)
        assert application_bytes(folder) == application_bytes(processes)


@pytest.mark.parametrize("method", ["gca", "fedavg"])
def test_fewer_evaluations_are_some_of_the_many_and_change_no_model(tmp_path: Path, method: str) -> None:
    """Of all epochs, the last of each phase, or of each round; the aggregate of parameters counts as a phase."""
    found, states = {}, set()
    epochs = {"training.recon_epochs": 3, "training.align_epochs": 2, "training.local_epochs": 3}
    for every in ("epoch", "phase", "round"):
        chosen = study(method=method, devices=3, **epochs, **{"evaluation.every": every})
        run_study(chosen, tmp_path / every, Quiet())
        found[every] = rows(tmp_path / every, EVALUATIONS)
        states.add(rows(tmp_path / every, "SELECT state_sha256 FROM runs")[0])
    assert len(states) == 1
    phases, of_round = {("recon", 3), ("align", 2), ("global", 1)}, ("align", 2) if method == "gca" else ("global", 1)
    assert found["phase"] == [row for row in found["epoch"] if row[2:4] in phases]
    assert found["round"] == [row for row in found["epoch"] if row[2:4] == of_round]
    assert len(found["round"]) == 6


def test_a_virtual_study_repeats_whatever_the_threads_and_the_hash_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = study(**{"participation.fraction": 0.5, "rounds": 3})
    for threads in (1, 3):

        async def as_tasks(federation: Federation, journal: Journal, threads: int = threads) -> Finished:
            return await run(federation, journal, threads)

        monkeypatch.setattr(running, "run_as_tasks", as_tasks)
        run_study(chosen, tmp_path / f"{threads}" / "run", Quiet())
    once = everything(tmp_path / "1" / "run")
    assert once == everything(tmp_path / "3" / "run")
    command = [sys.executable, "-m", "sim.cli", "simulate", "demo", "--rounds", "3", "--link", LINK,
               "--clock", "virtual", "--hardware", "pi-4b", "--set", "participation.fraction=0.5",
               "--output", str(tmp_path / "other" / "run")]  # fmt: skip
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "77"}, check=True, capture_output=True)
    assert once == everything(tmp_path / "other" / "run")
    asked = rows(tmp_path / "1" / "run", "SELECT count(*) FROM participants GROUP BY round")
    assert asked == [(4,)] * 3


def test_virtual_time_is_the_links_and_the_boards(tmp_path: Path) -> None:
    """A board a hundred times slower spends a hundred times the seconds in training, and nothing on evaluation."""
    fast = study(rounds=1)
    run_study(fast, tmp_path / "fast", Quiet())
    stage = "SELECT max(seconds) FROM stages WHERE stage = '{}'"
    training = rows(tmp_path / "fast", stage.format("reconstruction"))[0][0]
    # 33 records, 5 epochs on the board's 22 GFLOP/s; forward and backward are six FLOP per weight, biases apart.
    weights = 9 * 256 + 256 * 64 + 64 * 4
    assert training == pytest.approx(33 * 5 * 6 * 2 * weights / 22e9, rel=0.1)
    assert rows(tmp_path / "fast", stage.format("evaluate"))[0][0] == 0
    clock = rows(tmp_path / "fast", "SELECT seconds_clock FROM runs")[0][0]
    run_study(study(rounds=1, link="2kbit/2kbit/40ms"), tmp_path / "slow", Quiet())
    assert rows(tmp_path / "slow", "SELECT seconds_clock FROM runs")[0][0] > 20 * clock


def test_an_unknown_speed_is_measured_and_the_study_says_so(tmp_path: Path) -> None:
    run_study(study(rounds=1, hardware="host"), tmp_path / "a", Quiet())
    notes = [detail for (detail,) in rows(tmp_path / "a", "SELECT detail FROM events WHERE kind = 'note'")]
    assert any("not reproducible" in note for note in notes)
    run_study(study(rounds=1), tmp_path / "b", Quiet())
    notes = [detail for (detail,) in rows(tmp_path / "b", "SELECT detail FROM events WHERE kind = 'note'")]
    assert not any("not reproducible" in note for note in notes)


def test_synthetic_compute_keeps_the_bytes_and_the_seconds(tmp_path: Path) -> None:
    for compute in ("real", "synthetic"):
        run_study(study(compute=compute), tmp_path / compute / "run", Quiet())
    real, synthetic = tmp_path / "real" / "run", tmp_path / "synthetic" / "run"
    assert application_bytes(synthetic) == application_bytes(real)
    assert rows(synthetic, "SELECT * FROM stages WHERE stage != 'evaluate'") == rows(
        real, "SELECT * FROM stages WHERE stage != 'evaluate'"
    )
    assert rows(synthetic, "SELECT count(*) FROM evaluations") == [(0,)]
    assert rows(synthetic, "SELECT state_sha256 FROM runs") == [(None,)]


def test_a_failing_device_ends_the_run_with_its_name_and_the_others_told(tmp_path: Path) -> None:
    with pytest.raises(GcaError, match=r"device dev-000\d failed in reconstruction: .*upload_fraction"):
        run_study(study(**{"training.upload_fraction": 0.01}), tmp_path / "a", Quiet())
    completed, reason = rows(tmp_path / "a", "SELECT completed, reason FROM runs")[0]
    assert not completed and "upload_fraction" in reason
    assert threading.active_count() < 5


def test_a_run_that_can_never_end_is_blocked_and_says_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that forgets to upload would keep a server without a deadline waiting for ever."""
    from edge_client.conversation.session import Session

    async def forget(self: Session, round: int, arrays: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(Session, "upload", forget)
    with pytest.raises(GcaError, match=r"blocked at .*dev-0001 in .*") as caught:
        run_study(study(), tmp_path / "a", Quiet())
    assert type(caught.value).__name__ == "Blocked"


@pytest.mark.parametrize(("clock", "sent"), [("real", signal.SIGTERM), ("virtual", signal.SIGINT)])
def test_a_stopped_run_leaves_a_readable_study_behind(tmp_path: Path, sent: signal.Signals, clock: str) -> None:
    command = [sys.executable, "-m", "sim.cli", "simulate", "demo", "--isolation", "task", "--clock", clock,
               "--link", LINK, "--rounds", "100000", "--hardware", "pi-4b",
               "--output", str(tmp_path / "a")]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (tmp_path / "a" / "rounds").is_dir())
    running.send_signal(sent)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == (130 if sent == signal.SIGINT else running.returncode) != 0
    assert "Traceback" not in errors and "never awaited" not in errors
    assert rows(tmp_path / "a", "SELECT completed, reason FROM runs") == [(0, "interrupted")]


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_what_cannot_be_together_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r'clock: "virtual" is the clock of one event loop, which processes do not'):
        study(isolation="process")
    with pytest.raises(ConfigError, match=r"broker: .*in memory"):
        study(broker="mqtt://127.0.0.1")
    with pytest.raises(ConfigError, match="synthetic"):
        study(clock="real", compute="synthetic")
    assert study().as_tasks and not study(clock="real").as_tasks and study(clock="real", isolation="task").as_tasks
    done = gca("simulate", "demo", "--clock", "virtual", "--isolation", "process")
    assert done.returncode == 2 and "clock" in done.stderr


def test_a_fleet_that_does_not_fit_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    thousand = study(devices=1000)
    memory, descriptors = demands(thousand)
    assert memory < demands(replace_isolation(thousand))[0] / 5
    assert descriptors < 100
    monkeypatch.setattr("sim.emulation.workload.available_memory", lambda: memory - 1)
    with pytest.raises(GcaError, match=r"1000 device tasks need about .* GB of memory, .* use at most --devices 999"):
        check_machine(thousand)
    assert TASK_BYTES >= 1_000_000


def replace_isolation(chosen: Study) -> Study:
    import msgspec

    return msgspec.structs.replace(chosen, clock="real", isolation="process")


def test_a_study_says_what_trained_and_a_person_hears_of_the_slow_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Heard(Quiet):
        def note(self, text: str) -> None:
            told.append(text)

    monkeypatch.setenv("GCA_KERNEL", "numpy")
    run_study(study(rounds=1, devices=2, method="single"), tmp_path / "slow", Heard())
    noted = rows(tmp_path / "slow", "SELECT detail FROM events WHERE detail LIKE 'training: %'")
    assert noted == [(told[0],)] and told[0].startswith("training: numpy trainer")
    run_study(study(rounds=1, devices=2, compute="synthetic"), tmp_path / "none", Heard())
    assert not rows(tmp_path / "none", "SELECT detail FROM events WHERE detail LIKE 'training: %'")
