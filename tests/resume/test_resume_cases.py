"""What is there when a study is to go on, and what then happens: one line each."""

import fcntl
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from end_to_end_tools import gca
from hypothesis import given
from hypothesis import strategies as st
from resume.stopped import QUIET, at_each_call, outcome, rows, small, snapshot

from broker_server.study.schema import VERSION
from edge_client.checkpoint import Checkpoint, load, save
from edge_client.errors import EnvironmentFault, GcaError
from edge_client.model.trainer import ModelState
from sim.emulation.states import Retention, kept_rounds, load_state, save_state, state_path
from sim.emulation.study import resume_study, run_study

RESUMED = "SELECT detail FROM events WHERE detail LIKE 'resumed%'"
AFTER_4 = "resumed: the study goes on after round 4"
AFTER_2 = "resumed: the study goes on after round 2"
ANEW = "resumed: the study begins anew: no round was whole"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A completed study, and the same one as killed in its last round."""
    place = tmp_path_factory.mktemp("cases")
    folder = place / "whole" / "run"
    folder.mkdir(parents=True)

    def act(n: int) -> None:
        if n == 62:
            snapshot(folder, place / "killed")

    with pytest.MonkeyPatch.context() as patch:
        at_each_call(patch, act)
        run_study(small(place), folder, QUIET)
    yield folder, place / "killed" / "run"


@pytest.fixture
def killed(whole: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[1], tmp_path / "run"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-700])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda study: None, AFTER_4),
    "a temporary file left behind": (
        lambda study: state_path(study, 4, "dev-0001").with_name(".dev-0001.npz.4711").write_bytes(b"PK\3\4"),
        AFTER_4,
    ),
    "a state cut short": (lambda study: truncate(state_path(study, 4, "dev-0002")), AFTER_2),
    "a state with a flipped bit": (lambda study: flip(state_path(study, 4, "dev-0002")), AFTER_2),
    "an empty state": (lambda study: state_path(study, 4, "dev-0003").write_bytes(b""), AFTER_2),
    "a state missing": (lambda study: state_path(study, 4, "dev-0003").unlink(), AFTER_2),
    "another device's state": (
        lambda study: shutil.copy(state_path(study, 4, "dev-0001"), state_path(study, 4, "dev-0003")),
        AFTER_2,
    ),
    "a broadcast cut short": (lambda study: truncate_to(study / "rounds" / "00004.safetensors", 40), AFTER_2),
    "a broadcast missing": (lambda study: (study / "rounds" / "00004.safetensors").unlink(), AFTER_2),
    "no states": (lambda study: shutil.rmtree(study / "states"), ANEW),
    "no broadcasts": (lambda study: shutil.rmtree(study / "rounds"), ANEW),
    "a round without a device's report": (
        lambda study: change(
            study, "DELETE FROM transfers WHERE side = 'device' AND round = 4 AND device = 'dev-0002'"
        ),
        AFTER_2,
    ),
    "a round without a link's counters": (
        lambda study: change(study, "DELETE FROM wire WHERE round = 4 AND device = 'dev-0002' AND direction = 'up'"),
        AFTER_2,
    ),
    "no models folder": (lambda study: shutil.rmtree(study / "models"), AFTER_4),
}


def truncate_to(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def change(study: Path, statement: str) -> None:
    connection = sqlite3.connect(study / "study.sqlite")
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_costs_rounds_and_no_result(whole: tuple[Path, Path], killed: Path, what: str) -> None:
    damage, where = DAMAGE[what]
    damage(killed)
    resume_study(killed, QUIET)
    assert rows(killed, RESUMED) == [(where,)]
    assert outcome(killed) == outcome(whole[0])


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no study": (lambda study: (study / "study.toml").unlink(), r"holds no study \(study.toml is missing\)"),
    "a store that is none": (lambda study: garble(study), r"study.sqlite: .*not damaged"),
    "another version": (
        lambda study: change(study, f"PRAGMA user_version={VERSION + 1}"),
        rf"is of version {VERSION + 1}, this program reads version {VERSION}",
    ),
    "an unknown key": (
        lambda study: (study / "study.toml").write_text("future = 1\n" + (study / "study.toml").read_text()),
        "future",
    ),
    "records missing": (lambda study: (study / "shards" / "dev-0002.npz").unlink(), r"dev-0002.npz: No such file"),
    "records cut short": (
        lambda study: truncate_to(study / "shards" / "dev-0002.npz", 90),
        "dev-0002.npz: not an .npz file",
    ),
}


def garble(study: Path) -> None:
    for path in study.glob("study.sqlite*"):
        path.unlink()
    (study / "study.sqlite").write_bytes(b"no database at all" * 300)


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_go_on_says_so_in_one_line(killed: Path, what: str) -> None:
    harm, message = REFUSED[what]
    harm(killed)
    with pytest.raises(GcaError, match=message) as caught:
        resume_study(killed, QUIET)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_none_and_a_study_under_way_are_refused(tmp_path: Path, killed: Path) -> None:
    with pytest.raises(EnvironmentFault, match="holds no study"):
        resume_study(tmp_path / "nowhere", QUIET)
    with (killed / "study.toml").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EnvironmentFault, match="another process runs this study"):
            resume_study(killed, QUIET)


@pytest.mark.parametrize("left", ["study.toml", "shards", "an empty store", "a store without a run"])
def test_a_study_killed_before_its_run_began_begins(whole: tuple[Path, Path], tmp_path: Path, left: str) -> None:
    folder = tmp_path / "run"
    (folder / "models").mkdir(parents=True)
    shutil.copy(whole[0] / "study.toml", folder)
    if left != "study.toml":
        (folder / "shards").mkdir()
        (folder / "shards" / "dev-0001.npz").write_bytes(b"PK\3\4 and no more")
    if left == "an empty store":
        (folder / "study.sqlite").touch()
    if left == "a store without a run":
        shutil.copy(whole[0] / "study.sqlite", folder)
        change(folder, "DELETE FROM runs")
    resume_study(folder, QUIET)
    assert outcome(folder) == outcome(whole[0])


def test_the_command_refuses_changes_and_leaves_a_complete_study_alone(whole: tuple[Path, Path]) -> None:
    before = outcome(whole[0])
    for option in (["--rounds", "9"], ["demo"], ["--set", "training.latent_dim=2"], ["--output", "elsewhere"]):
        done = gca("simulate", "--resume", str(whole[0]), *option)
        assert done.returncode == 2 and "a study goes on as it was begun" in done.stderr, option
    done = gca("simulate", "--resume", str(whole[0]))
    assert done.returncode == 0 and "is complete: nothing is left to do" in done.stdout
    assert outcome(whole[0]) == before


# ---- the disk ----------------------------------------------------------------------------------------------------


@contextmanager
def no_room() -> Iterator[None]:
    """A disk on which no file may grow beyond a little; for moments, as the test run's own output may be a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_and_leaves_the_old_checkpoint(killed: Path) -> None:
    path = state_path(killed, 4, "dev-0001")
    before = path.read_bytes()
    told = r"dev-0001.npz: File too large; the checkpoint could not be written"
    with pytest.raises(EnvironmentFault, match=told), no_room():
        save_state(killed, load_state(killed, 4, "dev-0001"))
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 3


def test_a_store_that_may_not_be_written_is_told(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that was mounted for reading only, which lets nobody write, root included."""
    uri = f"{(killed / 'study.sqlite').absolute().as_uri()}"
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **more: real(f"{uri}?mode=ro", **{**more, "uri": True}))
    with pytest.raises(EnvironmentFault, match=r"study.sqlite: attempt to write a readonly database; check"):
        resume_study(killed, QUIET)


def test_a_place_that_cannot_hold_states_is_told(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("a file where the folder belongs")
    with pytest.raises(EnvironmentFault, match="the checkpoint could not be written"):
        save_state(tmp_path, kept(1))


# ---- what is kept ------------------------------------------------------------------------------------------------


def kept(round: int, device: str = "a") -> Checkpoint:
    vectors = (np.arange(5, dtype=np.float32) * factor for factor in (1, 2, 3))
    return Checkpoint("run.00000000", device, round, round - 1, 17, ModelState(*vectors, 4, 5, 6))


def test_a_checkpoint_comes_back_to_the_bit(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", kept(9))
    back, sent = load(tmp_path / "a.npz"), kept(9)
    assert (back.run, back.device, back.round, back.holds, back.seq) == ("run.00000000", "a", 9, 8, 17)
    for name in ("parameters", "first_moment", "second_moment"):
        assert getattr(back.state, name).tobytes() == getattr(sent.state, name).tobytes()
    assert (back.state.encoder_steps, back.state.decoder_steps, back.state.epochs) == (4, 5, 6)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@given(cut=st.integers(0, 10_000), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_damaged_checkpoint_is_refused_or_the_same(tmp_path_factory: pytest.TempPathFactory, cut: int, at: int,
                                                     bit: int) -> None:  # fmt: skip
    """Cut anywhere, or with any bit flipped. Some bits of a zip mean nothing; those of its content are summed."""
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    save(path, kept(9))
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << bit
    for damaged in (content, path.read_bytes()[: cut % len(content)]):
        path.write_bytes(damaged)
        try:
            assert load(path).state.parameters.tobytes() == kept(9).state.parameters.tobytes()
        except EnvironmentFault as error:
            assert "damaged.npz" in str(error) and "\n" not in str(error)


STRANGE: dict[str, dict[str, Any]] = {
    "no moments": {"first_moment": None},
    "moments of another length": {"second_moment": np.zeros(4, np.float32)},
    "NaN": {"parameters": np.full(5, np.nan, np.float32)},
    "integers": {name: np.zeros(5, np.int32) for name in ("parameters", "first_moment", "second_moment")},
    "negative counts": {"counts": np.full(6, -1, np.int64)},
    "too few counts": {"counts": np.ones(5, np.int64)},
    "nobody's": {"whose": np.array(["run"])},
    "pickled": {"whose": np.array([None, None], object)},
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_checkpoint_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    save(tmp_path / "a.npz", kept(9))
    with np.load(tmp_path / "a.npz") as file:
        arrays = {**file, **STRANGE[what]}
    np.savez(tmp_path / "a.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(EnvironmentFault, match=r"a.npz: is no whole checkpoint \(.*delete it to begin anew"):
        load(tmp_path / "a.npz")


def test_only_the_last_two_rounds_that_all_devices_finished_are_kept(tmp_path: Path) -> None:
    retention = Retention(tmp_path, ["a", "b"])
    for round in range(1, 6):
        for device in "ab":
            if (round, device) != (5, "b"):  # it is still at it
                save_state(tmp_path, kept(round, device))
                retention.reported(device, round)
    assert kept_rounds(tmp_path) == [5, 4, 3]


def test_rounds_that_a_device_missed_do_not_count_as_kept(tmp_path: Path) -> None:
    """b is slow and sits out every other round: what both have is kept, however old."""
    retention = Retention(tmp_path, ["a", "b"])
    for round in range(1, 9):
        for device in "ab" if round % 2 else "a":
            save_state(tmp_path, kept(round, device))
            retention.reported(device, round)
    assert {5, 7} <= set(kept_rounds(tmp_path)) and 3 not in kept_rounds(tmp_path)
