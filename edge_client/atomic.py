"""Files that are replaced as a whole: after a crash or a power loss there is the old one or the new one, never half."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from edge_client.errors import EnvironmentFault


def forget_unfinished(path: Path) -> None:
    """Delete what processes that were killed while they wrote this file have left beside it."""
    for beside in path.parent.glob(f".{path.name}.*"):
        beside.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | memoryview, what: str, mode: int = 0o666) -> None:
    """Write a file beside its place, force it to the disk and move it there, with these permissions less the umask.

    Raises `EnvironmentFault`, which calls the file `what`, when the disk refuses; the old file is still there then, or
    the new one, whole.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)  # half of it would fill the disk further
        raise EnvironmentFault(f"{path}: {error.strerror}; the {what} could not be written") from None


def _sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk: a file that was moved to its place may else be missing from there after
    a power loss. Where no folder can be opened, or synced, there is nothing to be done about that."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:  # the platform lets nobody, or this folder does not let us
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system knows no such thing
            raise
    finally:
        os.close(opened)
