"""When each device did what, put together from the server's clock and the devices' own seconds.

A device reports how long it spent in each stage of a round, not when. Its broadcast tells: it was published at a known
instant and came down half a round trip and its own bytes later. From there the stages before it are laid out
backwards, those after it forwards. A round without a broadcast for the device is laid out forwards from its opening.
The error is that of the link's jitter, of queueing and of TCP's slow start.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sim.costs import BEFORE_EXCHANGE
from sim.energy import ASIDE, WAITING
from sim.links.profiles import downlink
from sim.report.study import ReportStudy

BEFORE = ("reconstruction",)
STAGES = (*BEFORE, *WAITING, "alignment", "adoption")
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
    """What one device did in one round, before its upload, until the broadcast was in, and after it."""

    round: int
    device: str
    before: tuple[Interval, ...]
    exchange: tuple[Interval, ...]
    after: tuple[Interval, ...]

    @property
    def stages(self) -> tuple[Interval, ...]:
        return (*self.before, *self.exchange, *self.after)


def device_rounds(study: ReportStudy) -> list[DeviceRound]:
    """Return each device's part in each round that was finished, by device and round."""
    spent: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for stage in study.stages:
        spent[stage.device][stage.round][stage.stage] = stage.seconds
    early, late = _evaluations(study)
    arrivals = _arrivals(study)
    found = []
    for device in sorted(spent):
        free = 0.0  # when the device was through with the round before
        for number in sorted(spent[device].keys() & study.rounds.keys()):
            key, opened = (number, device), study.rounds[number].opened
            share = early[key] / max(1, early[key] + late[key])
            before, exchange, after = _in_order(spent[device][number], share)
            lead = sum(seconds for _, seconds in (*before, *exchange))
            begin = max(arrivals[key] - lead if key in arrivals else opened, opened, free)
            ends = _laid_out(begin, before), _laid_out(begin + sum(s for _, s in before), exchange)
            found.append(DeviceRound(*key, *ends, _laid_out(begin + lead, after)))
            free = found[-1].stages[-1].end
    return found


def quantiles(study: ReportStudy) -> list[tuple[str, tuple[float, ...], int]]:
    """Return (what, its seconds at QUANTILES, how many there were) for the rounds and for each stage in them."""
    seconds: dict[str, list[float]] = {ROUND: [one.published - one.opened for one in study.rounds.values()]}
    for stage in study.stages:
        seconds.setdefault(stage.stage, []).append(stage.seconds)
    return [(what, tuple(np.quantile(all_, QUANTILES).tolist()), len(all_)) for what, all_ in seconds.items()]


def _in_order(spent: Mapping[str, float], share: float) -> tuple[list[tuple[str, float]], ...]:
    """Return the stages before, during and after the exchange; `share` of the evaluations was made before."""
    judging = spent.get(ASIDE, 0.0)

    def chosen(names: Iterable[str], judged: float) -> list[tuple[str, float]]:
        stages = [(name, spent[name]) for name in names if name in spent]
        return [*stages, (ASIDE, judged)] if judged > 0 else stages

    after = sorted(spent.keys() - {*BEFORE, *WAITING, ASIDE}, key=place)
    return chosen(BEFORE, judging * share), chosen(WAITING, 0.0), chosen(after, judging * (1 - share))


def _laid_out(begin: float, stages: Iterable[tuple[str, float]]) -> tuple[Interval, ...]:
    placed = []
    for name, seconds in stages:
        placed.append(Interval(name, begin, begin + seconds))
        begin += seconds
    return tuple(placed)


def _evaluations(study: ReportStudy) -> tuple[Counter[tuple[int, str]], Counter[tuple[int, str]]]:
    """Count each device's evaluations of a round before its upload, and after its broadcast."""
    keys = [((one.round, one.device), one.phase in BEFORE_EXCHANGE) for one in study.evaluations]
    return Counter(key for key, early in keys if early), Counter(key for key, early in keys if not early)


def _arrivals(study: ReportStudy) -> dict[tuple[int, str], float]:
    """Return when a round's broadcast was in at a device that got one."""
    downs = {
        device: downlink(link) for device in {one.device for one in study.traffic} if (link := study.link_of(device))
    }
    arrivals = {}
    for one in study.traffic:
        if (one.kind, one.direction) == ("broadcast", "down") and one.message and one.round in study.rounds:
            down = downs.get(one.device)
            travel = (down.delay if down else 0.0) + (8 * one.message / down.rate if down and down.rate else 0.0)
            arrivals[one.round, one.device] = study.rounds[one.round].published + travel
    return arrivals


def place(stage: str) -> tuple[int, str]:
    """Return where a stage stands among others."""
    known = (ROUND, *STAGES, ASIDE)
    return (known.index(stage) if stage in known else len(known), stage)
