"""Find a published file on this machine, unpack it, verify it; fetch it when it is nowhere.

Order of search: the folder given, then GCA_DATA_DIR, then the user cache; in each `<folder>/<file>`, plain, `.gz`
or `.xz`; last the place where a package of the operating system puts it. The first file found is the one used: a
damaged one is reported, never passed over.
"""

import gzip
import io
import lzma
import os
import zlib
from importlib import resources
from pathlib import Path

from edge_client.errors import ConfigError, EnvironmentFault, pip_install
from sim.data.checks import read_bounded, require_digest
from sim.data.fetching import Opener, by_hand, fetch, open_https
from sim.data.sources import RawFile

DATA_DIR_VARIABLE = "GCA_DATA_DIR"


def cache_dir() -> Path:
    """Return the folder for fetched files: XDG_CACHE_HOME/gca where that is set and absolute, else ~/.cache/gca."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "gca"


def search_path(data_dir: Path | None = None) -> tuple[Path, ...]:
    """Return the folders to look in, first to last. A folder that was asked for and is not there is a ConfigError."""
    folders = []
    if data_dir is not None:
        folders.append(_existing(data_dir, "--data-dir"))
    if variable := os.environ.get(DATA_DIR_VARIABLE):
        folders.append(_existing(Path(variable), DATA_DIR_VARIABLE))
    return (*folders, cache_dir())


def find(folder: str, file: RawFile, folders: tuple[Path, ...]) -> Path | None:
    """Return the path of `file`, packed or plain, or None. A packaged file is found where its package is installed."""
    if file.package:
        return _packaged(file)
    places = [root / folder for root in folders] + ([Path(file.system)] if file.system else [])
    candidates = (place / (file.name + suffix) for place in places for suffix in ("", ".gz", ".xz"))
    return next((path for path in candidates if path.is_file()), None)


def read(path: Path, file: RawFile) -> bytes:
    """Return the unpacked, verified bytes of `path`. Raises EnvironmentFault on anything but the published file."""
    try:
        with _unpacked(path, file) as stream:
            content = read_bounded(stream, file.size, str(path))
        require_digest(content, file, str(path))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise EnvironmentFault(
            f"cannot read {path}: {error}; replace the file or delete it to fetch it anew"
        ) from error
    except EnvironmentFault as error:
        raise EnvironmentFault(f"{error}; replace the file or delete it to fetch it anew") from error
    return content


def obtain(
    folder: str,
    file: RawFile,
    data_dir: Path | None = None,
    *,
    offline: bool = False,
    opener: Opener = open_https,
) -> tuple[bytes, Path]:
    """Return the verified bytes of `file` and the path they lie at, fetching them into the user cache if need be.

    Raises EnvironmentFault when the file is absent and `offline`, or cannot be fetched, or is damaged; to be put there
    by hand it belongs into the first folder that is searched, the one that was given.
    """
    folders = search_path(data_dir)
    path = find(folder, file, folders)
    if path is not None:
        return read(path, file), path
    target, place = (root / folder / file.name for root in (cache_dir(), folders[0]))
    if offline or not file.url:
        raise EnvironmentFault(f"{file.name} is not on this machine; {by_hand(file, place)}")
    return fetch(file, target, opener, place=place), target


def _unpacked(path: Path, file: RawFile) -> gzip.GzipFile | lzma.LZMAFile | io.BufferedReader:
    if path.name == file.name:  # also where the published file is an archive itself
        return path.open("rb")
    return gzip.open(path) if path.suffix == ".gz" else lzma.open(path)


def _existing(folder: Path, origin: str) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"{origin}: {folder} is not a folder; create it, or name the one that holds the data")
    return folder


def _packaged(file: RawFile) -> Path:
    try:
        path = Path(str(resources.files(file.package) / file.name))
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"{file.name} comes with scikit-learn, which is missing; install it: {pip_install('sim')}"
        ) from error
    if not path.is_file():
        raise EnvironmentFault(f"{path} is missing; reinstall scikit-learn: pip install --force-reinstall scikit-learn")
    return path
