"""Words between a person and a program: lists as they are written on the command line, with commas, and text that is
fit for a terminal."""

from collections.abc import Iterable

from edge_client.errors import ConfigError


def names(text: str) -> tuple[str, ...]:
    """Return the parts of `a,b`, without blanks."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def one_or_several(text: str | None) -> object:
    """Return a name as it is, `a,b` as a list of names."""
    return text if text is None or "," not in text else list(names(text))


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers of `1,2`; raises ConfigError naming the option for anything else."""
    try:
        found = tuple(int(part) for part in names(text))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: write whole numbers with commas between, such as 100,200") from None
    if not found:
        raise ConfigError(f"{option}: give at least one whole number")
    return found


def shares(text: str, option: str) -> tuple[float, ...]:
    """Return the fractions of `0.6,0.65`; raises ConfigError naming the option unless all lie between 0 and 1."""
    try:
        found = tuple(float(part) for part in names(text))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: write numbers with commas between, such as 0.6,0.65") from None
    if not all(0.0 < one <= 1.0 for one in found):
        raise ConfigError(f"{option} {text!r}: accuracies lie between 0 and 1")
    return found


def told_once(failures: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each reason of (what failed, why), with the first that it befell and how many more it did."""
    by_reason: dict[str, list[str]] = {}
    for what, why in failures:
        by_reason.setdefault(why, []).append(what)
    return [
        f"failed: {first}{f' and {len(others)} more' if others else ''}: {why}"
        for why, (first, *others) in by_reason.items()
    ]


def printable(text: str) -> str:
    """Return text that a device may have had a hand in as one line that no terminal takes for commands."""
    return "".join(character if character.isprintable() else "?" for character in text)
