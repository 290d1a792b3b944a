"""What is wrong in a configuration and what would be allowed, in words for the person who wrote it."""

import re
import types
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from edge_client.errors import ConfigError

COMMAND_LINE = "command line"
"""Stands where a file's name would in a message about an override."""

_AT = re.compile(r" - at `\$\.?(?P<key>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<key>[^`]+)`")
_WORDS: Final[dict[object, str]] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def check_keys(kind: type[msgspec.Struct], tree: Mapping[str, object], where: str, prefix: str = "") -> None:
    """Raise ConfigError at the first key of `tree` that `kind` has not, or at a section that is no table."""
    for name, value in tree.items():
        section = _struct(_field(kind, name, where, prefix))
        if section is not None:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {prefix}{name}: {shown(value)} is not a table; allowed: [{prefix}{name}]")
            check_keys(section, value, where, f"{prefix}{name}.")


def check_override(root: type[msgspec.Struct], key: str) -> None:
    """Raise ConfigError unless the dotted `key` names a single value of a study."""
    kind = root
    *sections, last = key.split(".")
    prefix = ""
    for name in sections:
        section = _struct(_field(kind, name, COMMAND_LINE, prefix))
        if section is None:
            raise ConfigError(f"{COMMAND_LINE}: {key}: unknown key; {prefix}{name} is a single value")
        kind, prefix = section, f"{prefix}{name}."
    if section := _struct(_field(kind, last, COMMAND_LINE, prefix)):
        keys = ", ".join(f"{key}.{name}" for name in section.__struct_fields__)
        raise ConfigError(f"{COMMAND_LINE}: {key}: is a section; set one of {keys}")


def _field(kind: type[msgspec.Struct], name: str, where: str, prefix: str) -> object:
    """Return the annotated type of a field of `kind`; an unknown name is a ConfigError with the nearest known one."""
    hints = get_type_hints(kind, include_extras=True)
    if name not in hints:
        raise ConfigError(
            f"{where}: {prefix}{name}: unknown key{close_match(name, hints)}; allowed: {', '.join(hints)}"
        )
    hint: object = hints[name]
    return hint


def close_match(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "..."?` if a known name resembles `name`, else nothing."""
    found = get_close_matches(name, list(known), n=1)
    return f'; did you mean "{found[0]}"?' if found else ""


def _allowed(hint: object) -> str:
    """Return what a value of the annotated type may be, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _constrained(arguments[0], arguments[1:])
    if origin is Literal:
        return ", ".join(f'"{choice}"' for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_allowed(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"a list, each {_allowed(arguments[0])}"
    if _struct(hint) is not None:
        return "a table"
    return _WORDS.get(hint, "a value")


def _constrained(base: object, metas: tuple[msgspec.Meta, ...]) -> str:
    text = _allowed(base)
    for meta in metas:
        if meta.description is not None:
            return meta.description
        bounds = (("above", meta.gt), ("from", meta.ge), ("and below", meta.lt), ("to", meta.le))
        text += "".join(f" {word} {bound:,}" for word, bound in bounds if bound is not None)
        if meta.max_length is not None and base is str:
            text += f" of {meta.min_length or 0} to {meta.max_length} characters"
        elif meta.max_length is not None:
            text += f", at most {meta.max_length} of them"
    return text


def explain(root: type[msgspec.Struct], tree: Mapping[str, object], message: str, where: Callable[[str], str]) -> str:
    """Turn msgspec's complaint into one line; `where(key)` says where the value of `key` came from."""
    at = _AT.search(message)
    path = [part.split("[", 1)[0] for part in at["key"].split(".")] if at and at["key"] else []
    if missing := _MISSING.search(message):
        key = ".".join([*path, missing["key"]])
        return f"{where(key)}: {key}: is missing; allowed: {_allowed(_hint(root, [*path, missing['key']]))}"
    key = ".".join(path)
    value: Any = tree
    for part in path:
        value = value[part]
    return f"{where(key)}: {key}: {shown(value)} is not allowed; allowed: {_allowed(_hint(root, path))}"


def _hint(root: type[msgspec.Struct], path: list[str]) -> object:
    hint: object = root
    for part in path:
        section = _struct(hint)
        assert section is not None  # msgspec descends into structs only
        hint = get_type_hints(section, include_extras=True)[part]
    return hint


def _struct(hint: object) -> type[msgspec.Struct] | None:
    return hint if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else None


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
