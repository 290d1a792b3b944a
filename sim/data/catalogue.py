"""What `gca datasets` shows: every dataset, whether this machine has it, and whether its bytes are right."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_client.errors import EnvironmentFault
from sim.data.files import find, read, search_path
from sim.data.image_sources import IMAGE_SOURCES, ImageSource
from sim.data.sources import SOURCES, Source

State = Literal["verified", "present", "absent", "damaged"]
"""`present`: found, not yet verified. `damaged`: found, but not the published bytes."""


@dataclass(frozen=True, slots=True)
class Description:
    """One line of the catalogue. `problem` says what is wrong with a damaged file; `where` is empty if absent."""

    name: str
    title: str
    train_rows: int
    test_rows: int
    input_dim: int
    state: State
    where: tuple[Path, ...]
    licence: str
    home: str
    remark: str = ""
    problem: str = ""


def describe(data_dir: Path | None = None, *, verify: bool = True) -> tuple[Description, ...]:
    """Return the catalogue in alphabetical order; never fetches. `verify` reads every file that is there in full."""
    folders = search_path(data_dir)
    sources: dict[str, Source | ImageSource] = {**SOURCES, **IMAGE_SOURCES}
    return tuple(_describe(sources[name], folders, verify) for name in sorted(sources))


def _describe(source: Source | ImageSource, folders: tuple[Path, ...], verify: bool) -> Description:
    state: State = "verified" if verify else "present"
    where, problem = [], ""
    try:
        for file in source.files:
            path = find(source.folder, file, folders)
            if path is None:
                state = "absent"
                continue
            where.append(path)
            if verify:
                read(path, file)
    except EnvironmentFault as error:
        state, problem = "damaged" if where else "absent", str(error)
    return Description(
        name=source.name,
        title=source.title,
        train_rows=source.train_rows,
        test_rows=source.test_rows,
        input_dim=source.input_dim,
        state=state,
        where=tuple(where),
        licence=source.licence,
        home=source.home,
        remark=source.remark,
        problem=problem,
    )
