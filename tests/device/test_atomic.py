"""Files that are replaced as a whole: what reaches the disk in which order, and what a disk that fails leaves."""

import errno
import os
import stat
from pathlib import Path

import pytest

from edge_client.atomic import write_atomically
from edge_client.errors import EnvironmentFault


def spied(monkeypatch: pytest.MonkeyPatch, fault: int | None = None) -> list[str]:
    """Return a list that fills with what is synced and moved; syncing a folder raises `fault`, if there is one."""
    told: list[str] = []
    sync, replace = os.fsync, Path.replace

    def seen_sync(opened: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(opened).st_mode)
        told.append("sync folder" if is_folder else f"sync file of {os.fstat(opened).st_size} B")
        if is_folder and fault is not None:
            raise OSError(fault, os.strerror(fault))
        sync(opened)

    def seen_replace(self: Path, target: Path) -> Path:
        told.append(f"move to {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", seen_sync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    return told


def test_content_then_name_then_folder_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the first a power loss may leave the name without its content, without the last neither."""
    told = spied(monkeypatch)
    write_atomically(tmp_path / "state", b"12345", "state")
    assert told == ["sync file of 5 B", "move to state", "sync folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["state"] and (tmp_path / "state").read_bytes() == b"12345"


def test_a_file_system_that_syncs_no_folders_and_a_folder_that_cannot_be_opened_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spied(monkeypatch, errno.EINVAL)
    write_atomically(tmp_path / "state", b"1", "state")
    real = os.open

    def refuse(path: Path | str, flags: int, *more: int) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    write_atomically(tmp_path / "state", b"2", "state")
    assert (tmp_path / "state").read_bytes() == b"2"


def test_a_folder_that_the_disk_fails_to_keep_is_told_and_the_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "state", b"old", "state")
    spied(monkeypatch, errno.EIO)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(EnvironmentFault, match=r"state: Input/output error; the state could not be written"):
        write_atomically(tmp_path / "state", b"new", "state")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [path.name for path in tmp_path.iterdir()] == ["state"] and (tmp_path / "state").read_bytes() == b"new"
