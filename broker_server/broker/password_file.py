"""The embedded broker's file of users: a line NAME:HASH for each, readable by its owner alone."""

import os
import re
from pathlib import Path
from tempfile import NamedTemporaryFile

from broker_server.broker.access import PasswordTable, hash_password
from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.protocol.messages import NAME

SIZE_LIMIT = 16 * 1024 * 1024
"""Characters; a line has about 130."""
_MAKE = "make its lines with: gca broker --password-file FILE --add-user NAME"


def read_users(file: Path) -> PasswordTable:
    """Return the users; empty lines and those behind a # say nothing.

    Raises:
        EnvironmentFault: the file cannot be read.
        ConfigError: a line is not NAME:HASH, a name has two, or there is none.
    """
    hashes: dict[str, str] = {}
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, stored = line.strip().partition(":")
        try:
            PasswordTable({name: stored})
        except ConfigError:
            raise ConfigError(f"{file}, line {number}: is not NAME:HASH; {_MAKE}") from None
        if name in hashes:
            raise ConfigError(f"{file}, line {number}: {name} has a line already; keep one of them")
        hashes[name] = stored
    if not hashes:
        raise ConfigError(f"{file}: names nobody; {_MAKE}")
    return PasswordTable(hashes)


def check_name(name: str) -> None:
    """Raise `ConfigError` unless a device can have this name."""
    if not re.match(NAME, name):
        raise ConfigError(f"--add-user {name[:80]!r}: use 1 to 64 letters, digits, '.', '_' or '-'")


def add_user(file: Path, name: str, password: str) -> None:
    """Add a user to the file, or give one a new password. The file is replaced at once, with mode 0600.

    Raises:
        ConfigError: the name is none that a device can have, or the password is empty.
        EnvironmentFault: the file cannot be read or written.
    """
    check_name(name)
    if not password:
        raise ConfigError(f"--add-user {name}: the password is empty; type one, or pipe it in as one line")
    others = [line for line in (_lines(file) if file.exists() else []) if line.partition(":")[0].strip() != name]
    text = "".join(f"{line}\n" for line in [*others, f"{name}:{hash_password(password.encode())}"])
    try:
        with NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as new:  # of mode 0600
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        Path(new.name).replace(file)
    except OSError as error:
        raise EnvironmentFault(f"{file}: {error.strerror or error}; choose a file that can be written") from None


def open_to_others(file: Path) -> bool:
    """True if users of this machine other than the owner can read the file, and guess passwords from its hashes."""
    return os.name == "posix" and bool(file.stat().st_mode & 0o077)


def _lines(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(SIZE_LIMIT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentFault(f"{file}: {getattr(error, 'strerror', None) or error}; {_MAKE}") from None
    if len(text) > SIZE_LIMIT:
        raise ConfigError(f"{file}: is longer than {SIZE_LIMIT:,} characters; {_MAKE}")
    return text.splitlines()
