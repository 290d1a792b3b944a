"""A grid of studies: from one study and the keys to vary, to its cells and the folders they live in.

A cell's folder is named by what the study says, so the same study asked for by another grid is found and not run
again, and a study that differs in any key, or in a file of the user's that it names, never passes for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import product
from pathlib import Path

from edge_client.errors import ConfigError
from sim.config.devices import several
from sim.config.hardware import hardware, is_own
from sim.config.study import Study, dump, load_study, parse_override
from sim.links.profiles import link
from sim.links.trace import PREFIX

MAX_CELLS = 10_000
SHORTHANDS = {
    "k": "clustering.components",
    "upload_fraction": "training.upload_fraction",
    "participation": "participation.fraction",
    "algorithm": "clustering.algorithm",
    "partition": "data.partition",
}
"""Names that a person may use instead of the dotted key."""


@dataclass(frozen=True)
class Cell:
    """One study of a grid; `varied` is what tells it from the others."""

    study: Study
    varied: Mapping[str, object]

    @cached_property
    def name(self) -> str:
        """A folder's name: dataset, method and seed for people, a digest of the whole study for certainty."""
        study = self.study
        identity = blake2b("\n".join([dump(study), *_of_the_users(study)]).encode(), digest_size=6).hexdigest()
        return f"{study.dataset}-{study.method}-{study.seed}-{identity}"

    @property
    def label(self) -> str:
        """What is varied, in words."""
        return ", ".join(f"{key}={value}" for key, value in self.varied.items()) or "as configured"


def parse_over(texts: Sequence[str]) -> dict[str, tuple[object, ...]]:
    """Return the values of each key from `key=value,value` arguments; one key given twice adds up.

    Raises ConfigError for what is no such thing.
    """
    over: dict[str, tuple[object, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (equals and key.strip() and values.strip()):
            raise ConfigError(f"--over {text!r}: write key=value,value, such as k=10,20 or link=nbiot-field,256kbit")
        key = SHORTHANDS.get(key.strip(), key.strip())
        over[key] = over.get(key, ()) + tuple(parse_override(f"{key}={value}")[1] for value in values.split(","))
    return over


def cells(config: str, fixed: Mapping[str, object], over: Mapping[str, Sequence[object]]) -> list[Cell]:
    """Return one cell for each combination of the values in `over`, the last key varying fastest.

    `config` is a file or a packaged study, `fixed` its overrides. Every combination is checked here, before anything
    runs; raises ConfigError, or `EnvironmentFault` for a trace that cannot be read.
    """
    size = 1
    for values in over.values():
        size *= len(values)
    if size > MAX_CELLS:
        raise ConfigError(f"this grid has {size:,} cells, more than {MAX_CELLS:,}; vary fewer keys at once")
    grid = []
    for combination in product(*over.values()):
        varied = dict(zip(over, combination, strict=True))
        grid.append(Cell(load_study(config, {**fixed, **varied}), varied))
    for name in sorted({name for cell in grid for name in several(cell.study.link)}):
        link(name)
    for name in sorted({name for cell in grid for name in several(cell.study.hardware)}):
        hardware(name)
    return grid


def folder(cell: Cell, directory: Path) -> Path:
    """Return where a cell's study lies in the grid's directory."""
    return directory / cell.name


def _of_the_users(study: Study) -> list[str]:
    """Return what stands in the files that a study only names: traces of links, and boards that the user measured."""
    traces = [link(name) for name in several(study.link) if name.startswith(PREFIX)]
    return [repr(thing) for thing in (*traces, *(hardware(name) for name in several(study.hardware) if is_own(name)))]
