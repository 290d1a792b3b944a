"""When each device did what: it reports of every stage when it began and ended, and how long it worked in it.

What is left of a stage's span went into evaluations, as far as the device says that it made any. A stage of unknown
time is left out.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sim.config.devices import name_of
from sim.costs.energy import ASIDE
from sim.report.study import ReportStudy, Stage

DOWNLOAD = "download"
"""What is left of a device's wait once the server has published the broadcast."""
STAGES = ("catch_up", "reconstruction", "upload", "wait", DOWNLOAD, "alignment", "adoption")
"""Stages in their order in a round; those that nobody knows come last, as what a method does with its broadcast."""
ROUND = "round"
"""Stands for the whole of a round where its stages are listed."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Interval:
    """A stage of a device's round, in seconds since the run began."""

    stage: str
    begin: float
    end: float


@dataclass(frozen=True)
class DeviceRound:
    """What one device did in one round, in the order in which it did it."""

    round: int
    device: str
    stages: tuple[Interval, ...]


def device_rounds(study: ReportStudy) -> list[DeviceRound]:
    """Return each device's part in each round that was finished, by device and round."""
    found: dict[tuple[str, int], list[Stage]] = defaultdict(list)
    for stage in study.stages:
        if stage.round in study.rounds:
            found[stage.device, stage.round].append(stage)
    placed = [
        DeviceRound(round, device, tuple(_with_download(_placed(stages), study.rounds[round].published)))
        for (device, round), stages in sorted(found.items())
    ]
    return [one for one in placed if one.stages]


def outages(study: ReportStudy, device: str) -> list[tuple[float, float]]:
    """Return (from, to) of a device's link being down, in seconds since the run began."""
    names = tuple(study.links)
    link = study.links[name_of(names, device)] if names else None
    return list(link.outages) if link else []


def quantiles(study: ReportStudy) -> list[tuple[str, tuple[float, ...], int]]:
    """Return (what, its seconds at QUANTILES, how many there were) for the rounds and for each stage in them."""
    seconds: dict[str, list[float]] = {ROUND: [one.published - one.opened for one in study.rounds.values()]}
    for stage in study.stages:
        seconds.setdefault(stage.stage, []).append(stage.seconds)
    return [(what, tuple(np.quantile(all_, QUANTILES).tolist()), len(all_)) for what, all_ in seconds.items()]


def _with_download(stages: Sequence[Interval], published: float) -> Iterator[Interval]:
    """Yield the stages with the wait parted where the server published the broadcast."""
    for one in stages:
        if one.stage != "wait" or one.end <= published:
            yield one
            continue
        if one.begin < published:
            yield Interval(one.stage, one.begin, published)
        yield Interval(DOWNLOAD, max(one.begin, published), one.end)


def _placed(stages: Sequence[Stage]) -> tuple[Interval, ...]:
    """Return the stages of a device's round as they followed each other, evaluations behind what was evaluated."""
    judging = sum(one.seconds for one in stages if one.stage == ASIDE)
    placed = []
    for one in sorted(stages, key=lambda one: (one.began or 0.0, place(one.stage))):
        if one.began is None or one.ended is None or one.stage == ASIDE:
            continue
        worked = min(one.began + one.seconds, one.ended)
        judged = min(one.ended - worked, judging)
        placed.append(Interval(one.stage, one.began, worked))
        if judged > 0:
            placed.append(Interval(ASIDE, worked, worked + judged))
            judging -= judged
    return tuple(placed)


def place(stage: str) -> tuple[int, str]:
    """Return where a stage stands among others."""
    known = (ROUND, *STAGES, ASIDE)
    return (known.index(stage) if stage in known else len(known), stage)
