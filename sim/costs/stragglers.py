"""How long rounds and their stages took, how the slowest devices fared, and which bytes were of no use.

Stragglers are the slowest tenth of a run's devices, one at least: those whose uploads were accepted in the smallest
share of the rounds that asked for them, and of equals those that took longest from a round's opening to the end of
their upload.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from broker_server.study.store import StudyStore
from sim.costs.energy import ASIDE

SHARE = 0.1
"""Of the devices, the stragglers."""
QUANTILES = (0.5, 0.9, 0.99)

Quantiles = tuple[float, ...]


@dataclass(frozen=True)
class Stragglers:
    """`participation`: uploads accepted of those asked for; `accuracy`: mean of the last evaluations, None where there
    are none; of the stragglers, and of all devices."""

    devices: tuple[str, ...]
    participation: float
    accuracy: float | None
    participation_of_all: float
    accuracy_of_all: float | None


@dataclass(frozen=True)
class Waste:
    """Message bytes of no use. `late`: of uploads that came after their round had closed; `unused`: of all uploads that
    were not accepted, those among them, and of what either end ignored as stale, foreign or malformed. `repeated`:
    chunks that the server held already, their number."""

    late: int
    unused: int
    repeated: int


def round_quantiles(store: StudyStore, run: int) -> Quantiles | None:
    """Return seconds from a round's opening to its broadcast, over the rounds; None without any."""
    rows = store.rows("SELECT published_s - opened_s FROM rounds WHERE run = ?", run)
    return _quantiles(seconds for (seconds,) in rows)


def stage_quantiles(store: StudyStore, run: int) -> dict[str, Quantiles]:
    """Return the seconds of each stage over devices and rounds; stages by name."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for stage, spent in store.rows("SELECT stage, seconds FROM stages WHERE run = ? ORDER BY stage", run):
        if stage != ASIDE:
            seconds[stage].append(spent)
    return {stage: _quantiles(spent) or () for stage, spent in seconds.items()}


def stragglers(store: StudyStore, run: int) -> Stragglers | None:
    """Return how the slowest devices fared; None where no round has asked anybody."""
    asked, accepted = defaultdict[str, int](int), defaultdict[str, int](int)
    for device, fate, times in store.rows(
        "SELECT device, fate, count(*) FROM participants WHERE run = ? GROUP BY device, fate", run
    ):
        asked[device] += times
        accepted[device] += times if fate == "accepted" else 0
    if not asked:
        return None
    took = dict(store.rows(
        "SELECT device, avg(ended_s - opened_s) FROM stages JOIN rounds USING (run, round) "
        "WHERE run = ? AND stage = 'upload' AND ended_s IS NOT NULL GROUP BY device", run
    ))  # fmt: skip
    by_pace = sorted(asked, key=lambda d: (accepted[d] / asked[d], -took.get(d, math.inf), d))
    slowest = by_pace[: math.ceil(SHARE * len(by_pace))]
    last = _last_accuracies(store, run)

    def share(devices: Iterable[str]) -> float:
        chosen = list(devices)
        return sum(accepted[d] for d in chosen) / sum(asked[d] for d in chosen)

    return Stragglers(
        tuple(sorted(slowest)), share(slowest), _mean(last, slowest), share(by_pace), _mean(last, sorted(last))
    )


def waste(store: StudyStore, run: int) -> Waste:
    """Return the bytes of no use, as their senders counted uploads and their receivers what they ignored."""
    query = (
        "SELECT fate, sum(message_bytes) FROM transfers JOIN participants USING (run, round, device) "
        "WHERE run = ? AND side = 'device' AND kind = 'upload' AND fate != 'accepted' GROUP BY fate"
    )
    refused = dict(store.rows(query, run))
    ((ignored,),) = store.rows("SELECT sum(message_bytes) FROM transfers WHERE run = ? AND kind = 'ignored'", run)
    ((repeated,),) = store.rows("SELECT sum(count) FROM events WHERE run = ? AND kind = 'duplicate'", run)
    return Waste(int(refused.get("late", 0)), int(sum(refused.values())) + int(ignored or 0), int(repeated or 0))


def _last_accuracies(store: StudyStore, run: int) -> dict[str, float]:
    """Return each device's accuracy at its last evaluation, which is the last that was written down."""
    rows = store.rows("SELECT device, accuracy FROM evaluations WHERE run = ? ORDER BY rowid", run)
    return {device: accuracy for device, accuracy in rows if accuracy is not None}


def _mean(values: Mapping[str, float], devices: Iterable[str]) -> float | None:
    found = [values[device] for device in devices if device in values]
    return sum(found) / len(found) if found else None


def _quantiles(values: Iterable[float]) -> Quantiles | None:
    found = list(values)
    return tuple(np.quantile(found, QUANTILES).tolist()) if found else None
