"""Numbers in sentences."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with the thing counted: `1 device`, `2,000 devices`; `plural` where an s does not make it."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
