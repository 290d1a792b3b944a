"""Which program computes here. A recorded training holds for that program alone, whatever its study says: another
version of numpy or torch, another instruction set, or a changed line of ours may give other bits. What prepares and
shares out the data is left out: the records themselves are in a recording's identity."""

from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from edge_client.model.choice import dense_engine

COMPUTE = ("edge_client", "broker_server")
"""The packages that train, judge, aggregate and encode."""
SOURCES = (".py", ".c", ".h", ".so")


def program() -> str:
    """Return its versions, the path of its kernel, and a digest of its sources, compiled ones too; lines of text."""
    versions = [f"{name} {version(name)}" for name in ("gca", "numpy", "torch")]
    return "\n".join([*versions, dense_engine().name, _sources()])


@cache
def _sources() -> str:
    digest = blake2b(digest_size=8)
    for package in COMPUTE:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCES):
            content = path.read_bytes()
            digest.update(f"{package}/{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
