"""Where a run begins, or goes on after its program was stopped; each finished round leaves one such place behind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker_server.study.checkpoint import load_checkpoint, save_checkpoint
from edge_client.errors import EnvironmentFault
from edge_client.protocol.codec import Arrays


@dataclass(frozen=True)
class Start:
    """`completed` rounds are over, and the last of them gave `broadcast`.

    seconds: the run's clock then. seq: the number of the server's next message. elapsed_s: what deadlines are told
    from, each device's slowest way from opening to accepted upload so far. packed: what travelled in place of the
    broadcast, where a codec stood between. input_dim: the width of a record, as devices had it. accepted: whose uploads
    the last round was made of.
    """

    completed: int = 0
    broadcast: Arrays | None = None
    seconds: float = 0.0
    seq: int = 0
    elapsed_s: Mapping[str, float] = field(default_factory=dict)
    packed: Arrays | None = None
    input_dim: int | None = None
    accepted: tuple[str, ...] = ()


def place(directory: Path, round: int) -> Path:
    """Return where a study in `directory` keeps what a round broadcast."""
    return directory / "rounds" / f"{round:05d}.safetensors"


def _packed_place(directory: Path, round: int) -> Path:
    """Return where it keeps what travelled in place of that, for as long as this is the last round."""
    return place(directory, round).with_suffix(".packed")


def save_start(directory: Path, start: Start) -> None:
    """Keep what a round gave, in the folder of its study; raises `EnvironmentFault` when the disk refuses."""
    path = place(directory, start.completed)
    about = {"round": str(start.completed), "seconds": repr(start.seconds), "seq": str(start.seq),
             "elapsed_s": json.dumps(dict(start.elapsed_s)), "input_dim": str(start.input_dim or ""),
             "accepted": json.dumps(start.accepted)}  # fmt: skip
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{path.parent}: {error.strerror}; the checkpoint could not be written") from None
    if start.packed is not None:
        save_checkpoint(_packed_place(directory, start.completed), start.packed, {})
        _packed_place(directory, start.completed - 2).unlink(missing_ok=True)  # of the one before a stop may need it
    save_checkpoint(path, start.broadcast or {}, about)


def load_start(directory: Path, round: int) -> Start:
    """Return what `save_start` kept of a round; raises `EnvironmentFault` if it is not there, or not whole."""
    path = place(directory, round)
    broadcast, about = load_checkpoint(path)
    try:
        completed, seq, seconds = int(about["round"]), int(about["seq"]), float(about["seconds"])
        accepted = tuple(str(device) for device in json.loads(about.get("accepted", "[]")))
        width = int(about["input_dim"]) if about.get("input_dim") else None
        elapsed = {str(device): float(spent) for device, spent in json.loads(about["elapsed_s"]).items()}
    except (KeyError, ValueError, AttributeError, TypeError):
        raise EnvironmentFault(f"{path}: does not say where its run stood; the study cannot go on from it") from None
    if completed != round:
        raise EnvironmentFault(f"{path}: is of round {completed}; the study cannot go on from it")
    packed = _packed_place(directory, round)
    travelled = load_checkpoint(packed)[0] if packed.exists() else None
    return Start(completed, broadcast, seconds, seq, elapsed, travelled, width, accepted)
