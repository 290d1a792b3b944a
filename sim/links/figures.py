"""Numbers that say where they come from: the figures in `configs/links.toml` and `configs/hardware.toml`."""

import tomllib
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from edge_client.errors import ConfigError

Tag = Literal["seen", "derived", "assumption"]
T = TypeVar("T")


class Origin(msgspec.Struct, frozen=True):
    """Where a figure comes from: its tag, the addresses of its sources, and a remark."""

    tag: Tag
    sources: tuple[str, ...] = ()
    note: str = ""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number as it stands in a file; `source` names entries of the file's table of sources."""

    value: float
    tag: Tag
    source: tuple[str, ...] = ()
    note: str = ""

    def origin(self, sources: dict[str, str], where: str) -> Origin:
        """Return the origin with the sources spelled out.

        Raises ConfigError if a source is unknown, a seen figure cites none, or another says nothing about itself.
        """
        unknown = [key for key in self.source if key not in sources]
        if unknown:
            raise ConfigError(f"{where}: unknown source {unknown[0]!r}; add it to [sources]")
        if self.tag == "seen" and not self.source:
            raise ConfigError(f"{where}: a figure that was seen must cite its source")
        if self.tag != "seen" and not self.note:
            raise ConfigError(f"{where}: a figure that is {self.tag} must say how or why in its note")
        return Origin(self.tag, tuple(sources[key] for key in self.source), self.note)


def read(name: str, shape: type[T]) -> T:
    """Return the file `name` of the package `configs`, checked against `shape`."""
    return _parsed((files("configs") / name).read_text(encoding="utf-8"), f"configs/{name}", shape)


def read_own(path: Path, shape: type[T]) -> T:
    """Return a file of the user's, checked against `shape`; raises ConfigError if it cannot be read or is none."""
    try:
        return _parsed(path.read_text(encoding="utf-8"), str(path), shape)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; check the path") from None


def _parsed(text: str, where: str, shape: type[T]) -> T:
    try:
        table: dict[str, Any] = tomllib.loads(text)
        return msgspec.convert(table, shape)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{where}: {error}") from error


def choose(table: dict[str, T], name: str, kind: str, hint: str) -> T:
    """Return `table[name]`, or raise a ConfigError that names the entries that look like it, else `hint`."""
    if name in table:
        return table[name]
    close = get_close_matches(name.lower(), table, n=4, cutoff=0.5)
    mend = f"did you mean {', '.join(close)}?" if close else hint
    raise ConfigError(f"unknown {kind} {name!r}: {mend}")
