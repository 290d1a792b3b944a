"""Study folders: where they go and what makes one usable."""

import fcntl
import os
import re
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from edge_client.errors import EnvironmentFault
from sim.config.study import Study, load_study

STUDY = "study.toml"
"""A study's configuration, resolved, in its folder."""


def new_directory(dataset: str, method: str) -> Path:
    """Return a path named by what and when; the process id keeps two runs of one second apart."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("studies") / f"{dataset}-{method}-{stamp}-{os.getpid()}"


def run_name(directory: Path) -> str:
    """Return the run's name in topics: the folder's, with what topics may not hold replaced."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", directory.name).lstrip("._-")[:48]
    return safe or "run"


@contextmanager
def telling_where(directory: Path) -> Iterator[None]:
    """Let whoever interrupts a study, by Ctrl-C or SIGTERM, learn where that which was recorded of it lies."""
    try:
        yield
    except (KeyboardInterrupt, CancelledError):
        raise CancelledError(f"what was recorded until then is in {directory}; --resume goes on with it") from None


@contextmanager
def alone(directory: Path, *, by: Path) -> Iterator[None]:
    """Hold a study for the length of the block, by a lock on a file or folder of it: two programs that run it would
    spoil it. Freed however this one ends.

    Raises `EnvironmentFault` if another has it.
    """
    handle = os.open(by, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise EnvironmentFault(f"{directory}: another process runs this study; wait for it or stop it") from None
    finally:
        os.close(handle)


def make_directory(directory: Path) -> Path:
    """Make the folder of a study; raises `EnvironmentFault` if it cannot be made or holds something already."""
    try:
        if directory.exists() and any(directory.iterdir()):
            mend = f", or go on with the study in it: --resume {directory}" if (directory / STUDY).is_file() else ""
            raise EnvironmentFault(f"{directory}: is not empty; give a new folder as --output{mend}")
        (directory / "models").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"{directory}: {error.strerror}; give a folder that can be written as --output"
        ) from None
    return directory


def read_study(directory: Path) -> Study:
    """Return the configuration of the study in a folder; raises `EnvironmentFault` if it holds none."""
    path = directory / STUDY
    if not path.is_file():
        raise EnvironmentFault(f"{directory}: holds no study ({STUDY} is missing); give the folder of one")
    return load_study(path)
