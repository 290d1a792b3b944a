"""Fetch a published file from its public home: HTTPS only, bounded, verified, moved into place in one step."""

import gzip
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.client import HTTPException
from pathlib import Path
from typing import cast
from urllib import request

from edge_client.errors import EnvironmentFault
from sim.data.checks import Readable, read_bounded, require_digest
from sim.data.sources import RawFile

TIMEOUT_S = 30.0
"""For the connection and for each read; a slow line that keeps delivering is never cut off."""

ARCHIVE_LIMIT = 16 * 2**20
"""Bytes. The largest zip archive in the table has about one million."""
PACKED_SURPLUS = 2**16
"""Bytes by which a compressed file may exceed its content."""

Opener = Callable[[str, float], AbstractContextManager[Readable]]
"""(url, time-out in seconds) -> the body, readable."""


def open_https(url: str, timeout: float) -> AbstractContextManager[Readable]:
    """Open `url`; no other scheme is understood, neither in the address nor in a redirect."""
    director = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.UnknownHandler,
        request.HTTPSHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
    ):
        director.add_handler(handler())
    return cast("AbstractContextManager[Readable]", director.open(url, timeout=timeout))


def fetch(file: RawFile, target: Path, opener: Opener = open_https, *, place: Path | None = None) -> bytes:
    """Download `file`, store its unpacked bytes as `target` and return them.

    A reader of `target` sees either nothing or the complete verified file. Raises EnvironmentFault, one line with
    the address, the expected sum and the `place` to put the file by hand, which is `target` if left out.
    """
    try:
        content = _download(file, opener)
        require_digest(content, file, file.url)
        _store(content, target)
    except (
        OSError,
        EOFError,
        HTTPException,
        EnvironmentFault,
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        ValueError,
    ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EnvironmentFault(f"cannot fetch {file.name}: {reason}; {by_hand(file, place or target)}") from error
    return content


def by_hand(file: RawFile, place: Path) -> str:
    """Return the mend that always works: what to download, where to put it, how to know it is right."""
    if not file.url:
        return f"it has no public home: put it at {place.absolute()} (sha256 {file.sha256}), or choose another dataset"
    where = f"{file.url} ({' in '.join(reversed(file.members))} inside it)" if file.members else file.url
    return f"download {where} and put it at {place.absolute()} (plain, .gz or .xz; sha256 {file.sha256})"


def _download(file: RawFile, opener: Opener) -> bytes:
    limit = ARCHIVE_LIMIT if file.members else file.size + (PACKED_SURPLUS if file.packed else 0)
    with opener(file.url, TIMEOUT_S) as body:
        content = read_bounded(body, limit, file.url)
    if file.packed:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            content = read_bounded(packed, file.size, file.url)
    for depth, member in enumerate(file.members, start=1):
        limit = file.size if depth == len(file.members) else ARCHIVE_LIMIT
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(member) as inner:
            content = read_bounded(inner, limit, f"{file.url}: {member}")
    return content


def _store(content: bytes, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # The temporary file lies in the same folder, because a rename is atomic only within one file system.
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
