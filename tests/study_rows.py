"""What lies in a study's database, for tests that compare studies."""

import sqlite3
from pathlib import Path
from typing import Any


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Return what a query finds in the study of this folder."""
    connection = sqlite3.connect(folder / "study.sqlite")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()
