"""Processes: what a device costs, and that nothing is left behind however a run ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from end_to_end_tools import HANGS_S, descendants, gca, wait_for

SLOW = ("demo", "--rounds", "50", "--link", "nbiot-nb1-peak")


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "sim.cli", "simulate", *arguments, "--output", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_a_device_process_is_small_and_has_no_torch(tmp_path: Path) -> None:
    run = start(tmp_path / "study", *SLOW)
    try:
        wait_for(lambda: len(descendants(run.pid, "dev-")) >= 8)
        time.sleep(3)
        for pid in descendants(run.pid, "dev-"):
            status = Path(f"/proc/{pid}/status").read_text()
            resident_kb = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
            assert resident_kb < 60_000
            assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=HANGS_S)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_survives_the_command(tmp_path: Path, sent: signal.Signals) -> None:
    run = start(tmp_path / "study", *SLOW)
    wait_for(lambda: len(descendants(run.pid, "dev-")) >= 8)
    family = descendants(run.pid)
    run.send_signal(sent)
    _, errors = run.communicate(timeout=HANGS_S)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    if sent != signal.SIGKILL:
        assert run.returncode == 130
        where = f"what was recorded until then is in {tmp_path / 'study'}"
        assert errors == f"interrupted; {where}; --resume goes on with it\n"
    # What was recorded until then can be read.
    from broker_server.study.store import StudyStore

    with StudyStore.open(tmp_path / "study") as store:
        assert store.rows("SELECT count(*) FROM runs") == [(1,)]


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_reader_that_has_seen_enough_ends_the_run_quietly(tmp_path: Path, clock: str) -> None:
    """As `gca simulate | head -n 1`."""
    run = start(
        tmp_path / "study", "demo", "--rounds", "500", "--link", "none", "--clock", clock, "--hardware", "pi-4b"
    )
    assert run.stdout is not None and run.stderr is not None
    run.stdout.readline()
    family = descendants(run.pid)
    run.stdout.close()
    assert run.wait(HANGS_S) in (1, 141)
    assert run.stderr.read() == ""
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


def test_a_failing_device_ends_the_run_with_its_name_and_cause(tmp_path: Path) -> None:
    done = gca("simulate", "demo", "--link", "none", "--set", "training.upload_fraction=0.01",
               "--output", str(tmp_path / "study"))  # fmt: skip
    assert done.returncode != 0
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ") and "dev-000" in line and "reconstruction" in line and "upload_fraction" in line


def test_a_killed_device_ends_the_run_with_its_name(tmp_path: Path) -> None:
    run = start(tmp_path / "study", *SLOW)
    wait_for(lambda: len(descendants(run.pid, "dev-")) >= 8)
    os.kill(descendants(run.pid, "dev-")[3], signal.SIGKILL)
    assert run.stdout is not None
    said = next(line for line in run.stdout if "died" in line)  # at once, not when all others have said goodbye
    assert said.startswith("the run ends early: dev-00")
    _, errors = run.communicate(timeout=HANGS_S)
    assert run.returncode == 1
    assert "dev-00" in errors.strip().splitlines()[-1]


def test_more_devices_than_the_machine_holds_are_refused_before_the_start(tmp_path: Path) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))"
    many = ("simulate", "demo", "--devices", "250", "--set", "data.minimum_records=1")
    done = gca(*many, "--output", str(tmp_path / "s"), preamble=few)
    assert done.returncode == 3
    assert "512" in done.stderr and "--devices" in done.stderr
    assert not (tmp_path / "s").exists()


def test_two_runs_in_one_process(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from sim.config.study import load_study\n"
        "from sim.emulation.study import run_study\n"
        "from sim.screen.progress import Quiet\n"
        "from sim.screen.summary import result_json\n"
        "if __name__ == '__main__':\n"
        "    study = load_study('demo', {'rounds': 1, 'link': 'none'})\n"
        "    hashes = []\n"
        "    for name in 'ab':\n"
        f"        folder = Path({str(tmp_path)!r}) / name\n"
        "        run_study(study, folder, Quiet())\n"
        "        hashes.append(result_json(folder)['state_sha256'])\n"
        "    print(hashes[0] == hashes[1])\n"
    )
    script = tmp_path / "twice.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=HANGS_S)
    assert done.stdout.strip() == "True", done.stderr


def test_a_full_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.txt").write_text("keep me")
    done = gca("simulate", "demo", "--link", "none", "--output", str(tmp_path / "study"))
    assert done.returncode == 3 and "not empty" in done.stderr
