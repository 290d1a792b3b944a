"""What a report needs of one study, read once and eagerly, so that everything after it is a pure function.

A device reports of itself and may claim anything: figures that are none are dropped here, names stay as they are
and are escaped where they are shown.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from broker_server.study import results
from broker_server.study.records import AttackRecord
from broker_server.study.results import Point, RunRow
from broker_server.study.store import StudyStore
from edge_client.errors import EnvironmentFault, GcaError
from sim.config.devices import name_of
from sim.config.hardware import Hardware, hardware
from sim.costs.energy import Power, power
from sim.costs.spent import Instant, instants
from sim.links.profiles import LinkProfile, link
from sim.screen.summary import agreement, irregularities, judged, remarks_on, sound_curve

T = TypeVar("T")

LONGEST = 1e9
"""Seconds of a stage that are believed: 30 years."""
CONFIG_LIMIT = 64 * 1024
"""Bytes of a `study.toml` that are read; ours have about one thousand."""


@dataclass(frozen=True)
class Evaluation:
    """One device's model on its test set; shares in [0, 1], None where undefined."""

    round: int
    phase: str
    epoch: int
    device: str
    accuracy: float | None
    auroc: float | None
    average_precision: float | None


@dataclass(frozen=True)
class RoundTimes:
    """Seconds since the run began."""

    opened: float
    closed: float
    published: float


@dataclass(frozen=True)
class Traffic:
    """Messages of one kind between one device and the server in one round, as the device counted them, in bytes."""

    round: int
    device: str
    direction: str
    kind: str
    payload: int
    message: int


@dataclass(frozen=True)
class Crossing:
    """What crossed all links in one direction in one round, in bytes.

    `stream`: MQTT; `wire`: with headers and acknowledgements; `acks`: the pure acknowledgements among them.
    """

    round: int
    direction: str
    stream: int
    wire: int
    acks: int


@dataclass(frozen=True)
class Stage:
    """Seconds that a device spent in one stage of a round, and when: since the run began, None if not known."""

    round: int
    device: str
    stage: str
    seconds: float
    began: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class ReportStudy:
    """One study. `settings` is its `study.toml`, `text` the same as it stands; both empty where there is none.

    `fates` are (round, device, fate). `links` and `boards` are by name: None where it is no longer known. Those of real
    devices are in no file: there both are empty.
    """

    directory: Path
    run: RunRow
    text: str
    settings: Mapping[str, Any]
    links: Mapping[str, LinkProfile | None]
    boards: Mapping[str, Hardware | None]
    instants: tuple[Instant, ...]
    evaluations: tuple[Evaluation, ...]
    rounds: Mapping[int, RoundTimes]
    fates: tuple[tuple[int, str, str], ...]
    traffic: tuple[Traffic, ...]
    crossings: tuple[Crossing, ...]
    stages: tuple[Stage, ...]
    attacks: tuple[AttackRecord, ...]
    remarks: tuple[str, ...]

    @property
    def links_counted(self) -> bool:
        """Whether the bytes on the wire are known: all links were counted, or nothing was ever sent."""
        return bool(self.crossings) or not self.traffic

    @property
    def link_name(self) -> str:
        if not self.links_counted:
            return "real links"
        return ", ".join(named(self.settings, "link")) or "unknown link"

    @property
    def data_name(self) -> str:
        """What the devices learned from: real ones bring records of their own."""
        return self.run.dataset if self.links_counted else "the devices' own records"

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a table of the configuration, empty where it has none."""
        found = self.settings.get(name, {})
        return found if isinstance(found, dict) else {}


def read_study(directory: Path) -> ReportStudy:
    """Read the newest run of a study.

    Raises `EnvironmentFault` when the folder holds none, when it cannot be read or is of another version, and when
    not one round of it was finished.
    """
    text, settings = _configuration(directory / "study.toml")
    with StudyStore.open(directory) as store:
        run = results.last_run(store)
        rounds = store.rows("SELECT round, opened_s, closed_s, published_s FROM rounds WHERE run = ?", run.run)
        if not rounds:
            why = run.reason or "its program was stopped, or is still at it"
            raise EnvironmentFault(f"{directory}: no round was finished ({why}): there is nothing to report yet")
        points = sound_curve(store, run)
        traffic, crossings = _traffic(store, run.run), _crossings(store, run.run)
        # What a configuration says of links and boards does not hold for real ones, which nobody counts on.
        emulated = {} if traffic and not crossings else settings
        return ReportStudy(
            directory, run, text, settings,
            {name: _known(link, name) for name in named(emulated, "link")},
            {name: _known(hardware, name) for name in named(emulated, "hardware")},
            _instants(store, run, points, emulated),
            _evaluations(store, run, points),
            {number: RoundTimes(*times) for number, *times in rounds}, _fates(store, run.run),
            traffic, crossings, _stages(store, run),
            tuple(results.attacks(store, run.run)), _remarks(store, run, points),
        )  # fmt: skip


def _configuration(path: Path) -> tuple[str, dict[str, Any]]:
    """Return `study.toml` as text and as a table. It is shown, not run, so keys that nobody knows do no harm."""
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_LIMIT + 1)
        if len(content) > CONFIG_LIMIT:
            raise EnvironmentFault(f"{path}: holds more than {CONFIG_LIMIT:,} bytes, so it is no study's configuration")
        text = content.decode("utf-8")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        return "", {}
    except NotADirectoryError:
        raise EnvironmentFault(f"{path.parent}: is a file; name a study's folder") from None
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be read: {error.strerror}; check its permissions") from None
    except ValueError as error:  # not UTF-8, or no TOML
        raise EnvironmentFault(f"{path}: is damaged: {error}; restore it, or delete it to report without it") from None


def named(settings: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the names that a key of the configuration holds, one or a list of them."""
    value = settings.get(key)
    found = value if isinstance(value, list) else [value]
    names = tuple(one for one in found if isinstance(one, str))
    return names if len(names) == len(found) else ()


def _known(lookup: Callable[[str], T], name: str) -> T | None:
    """Return the profile of that name; None for one that is no longer known."""
    try:
        return lookup(name)
    except GcaError:
        return None


def _instants(store: StudyStore, run: RunRow, points: list[Point], settings: Mapping[str, Any]) -> tuple[Instant, ...]:
    """Return the points of the curve with what they had cost, in joules too where all links and boards are known."""
    found = instants(store, run.run, _powers(store, run, settings))
    sound = set(points)
    return tuple(one for one in found if one.point in sound)


def _powers(store: StudyStore, run: RunRow, settings: Mapping[str, Any]) -> dict[str, Power] | None:
    """Return what each device burns; None unless that is known of all."""
    links, boards = named(settings, "link"), named(settings, "hardware")
    if not (links and boards):
        return None
    try:
        return {
            device: power(name_of(links, device), name_of(boards, device))
            for (device,) in store.rows("SELECT DISTINCT device FROM stages WHERE run = ?", run.run)
        }
    except GcaError:
        return None


def _evaluations(store: StudyStore, run: RunRow, points: Iterable[Point]) -> tuple[Evaluation, ...]:
    """Return the evaluations behind the points of the curve."""
    sound = {(point.round, point.phase, point.epoch) for point in points}
    rows = store.rows(
        "SELECT round, phase, epoch, device, accuracy, auroc, average_precision FROM evaluations WHERE run = ? "
        "ORDER BY round, phase, epoch, device",
        run.run,
    )
    return tuple(Evaluation(*row) for row in rows if row[:3] in sound)


def _fates(store: StudyStore, run: int) -> tuple[tuple[int, str, str], ...]:
    return tuple(store.rows("SELECT round, device, fate FROM participants WHERE run = ? ORDER BY round, device", run))


def _traffic(store: StudyStore, run: int) -> tuple[Traffic, ...]:
    rows = store.rows(
        "SELECT round, device, direction, kind, sum(payload_bytes), sum(message_bytes) FROM transfers "
        "WHERE run = ? AND side = 'device' AND kind != 'telemetry' GROUP BY round, device, direction, kind "
        "ORDER BY round, device, direction, kind",
        run,
    )
    return tuple(Traffic(*row) for row in rows)


def _crossings(store: StudyStore, run: int) -> tuple[Crossing, ...]:
    rows = store.rows(
        "SELECT round, direction, sum(stream_bytes), sum(wire_bytes + ack_bytes), sum(ack_bytes) FROM wire "
        "WHERE run = ? GROUP BY round, direction ORDER BY round, direction",
        run,
    )
    return tuple(Crossing(*row) for row in rows)


def _stages(store: StudyStore, run: RunRow) -> tuple[Stage, ...]:
    rows = store.rows(
        "SELECT round, device, stage, sum(seconds), min(began_s), max(ended_s) FROM stages "
        "WHERE run = ? AND round BETWEEN 1 AND ? "
        "GROUP BY round, device, stage ORDER BY round, device, stage",
        run.run, run.rounds,
    )  # fmt: skip
    return tuple(Stage(*row) for row in rows if 0 <= row[3] <= LONGEST)


def _remarks(store: StudyStore, run: RunRow, points: list[Point]) -> tuple[str, ...]:
    fates = results.fates(store, run.run)
    best = results.peak(judged(points, run.method))
    return (*remarks_on(points, best, run), *agreement(store, run.run), *irregularities(store, run.run, fates))
