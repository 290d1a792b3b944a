"""One device is no "1 devices": wherever a number stands before a noun that may be one, `counted` says both."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from edge_client.words import counted

ROOT = Path(__file__).resolve().parents[2]
NOUNS = "devices|rounds|records|uploads|studies|seeds|codes|features|columns|clients|figures|datasets|outputs|cores"
COUNTED = re.compile(rf" (?:(?!the |has )\w+ )?(?:{NOUNS})\b(?! none)")
AT_LEAST_TWO = re.compile(r"(?:fewer|more) than $|(?:1|from 1) to $|at least $")


@pytest.mark.parametrize(
    ("count", "words", "told"),
    [
        (1, ("device",), "1 device"), (0, ("device",), "0 devices"), (12_000, ("code",), "12,000 codes"),
        (1, ("study", "studies"), "1 study"), (2, ("study", "studies"), "2 studies"),
    ],
)  # fmt: skip
def test_one_is_one(count: int, words: tuple[str, ...], told: str) -> None:
    assert counted(count, *words) == told


def uncounted(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of f-strings in which a value that is no constant stands before a plural."""
    for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        before = ""
        for part, after in pairwise(text.values):
            if isinstance(part, ast.FormattedValue) and isinstance(after, ast.Constant):
                constant = isinstance(part.value, ast.Name) and part.value.id.isupper()
                if COUNTED.match(str(after.value)) and not constant and not AT_LEAST_TWO.search(before):
                    yield part.lineno
            before = str(part.value) if isinstance(part, ast.Constant) else ""


def test_no_text_has_a_plural_after_a_bare_number() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for floor in ("edge_client", "broker_server", "sim")
        for path in sorted((ROOT / floor).rglob("*.py"))
        for line in uncounted(ast.parse(path.read_text()))
    ]
    assert found == []
