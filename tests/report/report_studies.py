"""Small studies written by hand, with figures that can be worked out on paper."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from broker_server.plan import RunPlan
from broker_server.study.checkpoint import save_checkpoint
from broker_server.study.records import Outcome, RoundRecord
from broker_server.study.store import StudyStore
from edge_client.protocol.messages import Evaluation, Tally, Telemetry

SHEET = (
    Tally(direction="up", kind="upload", messages=1, payload_bytes=24, message_bytes=100),
    Tally(direction="up", kind="control", messages=1, payload_bytes=0, message_bytes=10),
    Tally(direction="down", kind="broadcast", messages=1, payload_bytes=8, message_bytes=60),
)
STAGES = {"reconstruction": 2.0, "upload": 3.0, "wait": 5.0, "alignment": 1.0, "evaluate": 4.0}
TIMES = ((0.0, 10.0, 12.0), (12.0, 18.0, 20.0))
"""(opened, closed, published) of the two rounds."""
REPORTED = (15.0, 30.0)
"""When the devices reported the two rounds."""
CURVE = ((1, "recon", 1), (1, "align", 1), (2, "recon", 1), (2, "align", 1))
ACCURACY = {"d1": (0.5, 0.5, 0.75, 0.625), "d2": (0.75, 0.5, 0.75, 0.625)}
"""By device, along CURVE."""


def written(
    folder: Path, *, method: str = "gca", devices: Mapping[str, Sequence[float]] = ACCURACY,
    curve: Sequence[tuple[int, str, int]] = CURVE, stages: Mapping[str, float] = STAGES, link: str | None = None,
    wire: bool = True, ended: bool = True, late: Sequence[str] = (), note: str = "",
) -> Path:  # fmt: skip
    """Write a study of two rounds; `link` None leaves it without a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    if link is not None:
        settings = f"dataset = 'breast_cancer'\nlink = '{link}'\nhardware = 'host'\n[training]\nlatent_dim = 2\n"
        (folder / "study.toml").write_text(settings)
    with StudyStore.create(folder) as store:
        run = store.begin_run(RunPlan("demo", "00000000", method, 100, 2), len(devices), "breast_cancer")
        for round, times in enumerate(TIMES, start=1):
            late_now = tuple(late) if round == 2 else ()
            used = tuple(device for device in devices if device not in late_now)
            sheets = dict.fromkeys(devices, SHEET)
            store.record_round(run, RoundRecord(round, *times, None, used, late_now, (), (), sheets, {}))
            for device, accuracies in devices.items():
                evaluations = tuple(
                    Evaluation(phase=phase, epoch=epoch, loss=0.5, threshold=1.0, accuracy=accuracy, auroc=accuracy,
                               average_precision=math.nan)
                    for (r, phase, epoch), accuracy in zip(curve, accuracies, strict=True) if r == round
                )  # fmt: skip
                told = Telemetry(run="demo.00000000", round=round, device=device, seq=round, outcome="completed",
                                 spent_s=dict(stages), spans_s=spans(stages), tallies=SHEET,
                                 evaluations=evaluations, ignored={}, state_sha256="")  # fmt: skip
                store.record_telemetry(run, told, REPORTED[round - 1])
                if wire:
                    store.record_wire(run, round, device, "up", 130, 182, 1, 52)
                    store.record_wire(run, round, device, "down", 70, 122, 1, 104)
        if note:
            store.note(run, 1, None, "note", f"round 1: {note}")
        if ended:
            store.finish(run, Outcome(True, 2, 20.0), 30.0, "ab" * 32)
    return folder


def spans(stages: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return how long before its report a device began and ended each stage, one behind the other; half of the
    evaluation was made in the first of them, half in the last."""
    done, found = {name: seconds for name, seconds in stages.items() if name != "evaluate"}, {}
    judged = stages.get("evaluate", 0.0) / 2
    left = sum(stages.values())
    for place, (name, seconds) in enumerate(done.items()):
        lasted = seconds + (judged if place in (0, len(done) - 1) else 0.0)
        found[name] = left, left - lasted
        left -= lasted
    return found


def with_centroids(folder: Path) -> Path:
    """Leave two broadcasts of three centroids in a study: supports (1, 9, 20) and (10, 10, 10)."""
    (folder / "rounds").mkdir()
    centroids = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
    for round, support in ((1, (1, 9, 20)), (2, (10, 10, 10))):
        arrays = {"centroids": centroids, "support": np.array(support, np.float32)}
        save_checkpoint(folder / "rounds" / f"{round:05d}.safetensors", arrays, {})
    return folder
