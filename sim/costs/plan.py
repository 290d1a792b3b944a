"""What a study will cost, worked out before anything runs.

The messages of one round are really built and encoded; the link model says how long they take. Exact: payload bytes,
and message bytes but for a byte or two per message (sequence numbers grow, and round 1 names no deadline). Estimated:
wire bytes (whether two small packets share a segment is a matter of milliseconds) and seconds.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edge_client.cohort import draw, sizes
from edge_client.errors import ConfigError
from edge_client.methods.gca import upload_size
from edge_client.model.autoencoder import Architecture
from edge_client.model.choice import architecture_for
from edge_client.model.convolutional import ConvolutionalArchitecture
from edge_client.protocol.messages import Cohort
from edge_client.words import counted
from sim import guarantee
from sim.config.devices import POOLED, device_boards, device_links, in_short, several
from sim.config.hardware import HOST
from sim.config.run_plan import local_work
from sim.config.study import Study
from sim.costs.exchange import Message, Traffic, traffic
from sim.costs.payload import (
    BANK_UPLOADED_CODES,
    BANK_UPLOADED_CODES_PUBLISHED,
    PARAMETER_SHARING,
    payload_bytes,
    uploaded_codes,
)
from sim.data import Dataset
from sim.data.partition import device_name, shares
from sim.emulation.workload import demands
from sim.fleet.calibration import speed_here
from sim.links.link import LinkSpec, LinkState
from sim.links.link import plan as plan_link
from sim.links.profiles import downlink, link, uplink
from sim.screen.units import bytes_text, duration_text

SLOW_S = 3600.0
"""A round longer than this is worth a warning."""

Model = Architecture | ConvolutionalArchitecture


@dataclass(frozen=True)
class Bytes:
    up: int
    down: int

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.up + other.up, self.down + other.down)


@dataclass(frozen=True)
class StudyPlan:
    """Bytes per round over all devices; seconds per round of the slowest device; memory and descriptors that the
    emulation takes of this machine. `parameters` is P, `participants` is m, `uploaded` is U of round 1.
    `evaluation_s` comes on top on this machine and on no device in the field; `notes` are for the reader."""

    parameters: int
    participants: int
    uploaded: int
    payload: Bytes
    message: Bytes
    wire: Bytes
    full_exchange: Bytes
    training_s: float
    transfer_s: float
    evaluation_s: float
    memory_bytes: int
    file_descriptors: int
    notes: tuple[str, ...]

    @property
    def seconds_per_round(self) -> float:
        return self.training_s + self.transfer_s


def plan_study(study: Study, dataset: Dataset) -> StudyPlan:
    """Return what a round of this study costs; raises `ConfigError` if a device would have nothing to upload."""
    hyper = study.training
    architecture = architecture_for(hyper, dataset.input_dim)
    shards = _shards(study, dataset)
    cohort, chosen = _cohort(study, shards)
    uploaded = uploaded_codes(hyper.upload_fraction, [shards[d] for d in chosen]) if study.method == "gca" else 0
    components = min(study.clustering.components, uploaded)
    active = study.devices if study.is_local else len(chosen)

    def payload(method: str) -> Bytes:
        return Bytes(*payload_bytes(method, devices=study.devices, participants=active, uploaded_codes=uploaded,
                                    latent_dim=hyper.latent_dim, components=components,
                                    parameters=architecture.parameters))  # fmt: skip

    moved = _Moved(study, traffic(study, shards, cohort, chosen, components, architecture.parameters))
    trained = _training_s(study, architecture, {device: shards[device] for device in chosen})
    slowest = max(shards, key=lambda device: trained.get(device, 0.0) + moved.seconds.get(device, 0.0))
    memory, descriptors = demands(study)
    return StudyPlan(
        parameters=architecture.parameters, participants=active, uploaded=uploaded,
        payload=payload(study.method), full_exchange=payload("parameter_sharing"),
        message=moved.message, wire=moved.wire,
        training_s=trained.get(slowest, 0.0), transfer_s=moved.seconds.get(slowest, 0.0),
        evaluation_s=_evaluation_s(study, architecture, max(shards.values()) + len(dataset.test), len(chosen)),
        memory_bytes=memory, file_descriptors=descriptors,
        notes=tuple(_notes(study, dataset, uploaded, max(shards.values()))),
    )  # fmt: skip


def warnings(study: Study, planned: StudyPlan) -> list[str]:
    """Return what the reader of a plan must not miss, each one line with its mend."""
    found, each, deadline = [], planned.seconds_per_round, study.participation.deadline
    if each > SLOW_S:
        found.append(
            f"a round takes {duration_text(each)} on link {in_short(study.link)}, {counted(study.rounds, 'round')} "
            f"{duration_text(each * study.rounds)}; choose a faster link, fewer rounds or "
            + ("a smaller training.upload_fraction" if study.method == "gca" else "a smaller model (training.hidden)")
        )
    if deadline != "auto" and deadline < each and not study.is_local:
        found.append(
            f"participation.deadline is {deadline:g} s, but a round takes about {duration_text(each)}: uploads will be "
            'late; raise it or leave it at "auto"'
        )
    return found


# ---- what is said --------------------------------------------------------------------------------------------------


def _shards(study: Study, dataset: Dataset) -> dict[str, int]:
    """Return the records of everyone who trains; with GCA each must yield a code to upload."""
    parts = shares(study, dataset)
    shards = {device_name(number): len(rows) for number, rows in enumerate(parts, start=1)}
    if study.method == "centralized":
        return {POOLED: sum(shards.values())}
    fewest = min(shards.values())
    if study.method == "gca" and upload_size(study.training.upload_fraction, fewest) == 0:
        raise ConfigError(
            f"training.upload_fraction: {study.training.upload_fraction} of {counted(fewest, 'record')} is less than "
            "one code; raise it or use fewer devices"
        )
    return shards


def _cohort(study: Study, shards: Mapping[str, int]) -> tuple[Cohort, tuple[str, ...]]:
    """Return who trains in round 1, as the server will draw them; without a server, all."""
    who = study.participation
    _, asked = (0, len(shards)) if study.is_local else sizes(len(shards), who.fraction, who.over_selection)
    return draw(shards, asked, study.seed, 1)


# ---- what it takes -------------------------------------------------------------------------------------------------


class _Moved:
    """A round's traffic on the links of those who send and hear it; `seconds` are those of each device."""

    def __init__(self, study: Study, moved: Mapping[str, Traffic]) -> None:
        links = device_links(study)
        self.message, self.wire, self.seconds = Bytes(0, 0), Bytes(0, 0), dict[str, float]()
        for device, one in moved.items():
            up, down = uplink(links[device]), downlink(links[device])
            self.message += Bytes(sum(m.size for m in one.up), sum(m.size for m in one.down))
            self.wire += Bytes(_wire(one.up_bursts, one.down_bursts, up), _wire(one.down_bursts, one.up_bursts, down))
            self.seconds[device] = _transfer_s(one.up, up) + _transfer_s(one.down, down)


def _wire(sent: list[int], received: list[int], spec: LinkSpec) -> int:
    """Bytes of one direction of one device: its bursts in segments with headers, and TCP's acknowledgements, one for
    every two segments of the other direction."""
    segments, opposite = (sum(-(-burst // spec.mss) for burst in bursts) for bursts in (sent, received))
    return sum(sent) + spec.header * (segments + -(-opposite // 2))


def _transfer_s(messages: list[Message], spec: LinkSpec) -> float:
    """Seconds until the last of these messages has arrived, handed over at once."""
    if spec.rate is None and not spec.delay and not spec.jitter:
        return 0.0
    state, arrive = LinkState(spec), 0.0
    for message in messages:
        state, planned = plan_link(state, message.packet, 0.0)
        arrive = planned.arrive
    return arrive


def _training_s(study: Study, architecture: Model, shards: Mapping[str, int]) -> dict[str, float]:
    """Seconds of the local phases of each device, given its records."""
    epochs, boards = local_work(study), device_boards(study)
    each = epochs.recon * architecture.flops + epochs.align * architecture.encoder_flops

    def seconds(device: str, samples: int) -> float:
        board, flops = boards[device].training_flops, samples * each
        return _on_this_machine(study, architecture, flops, len(shards)) if board is None else flops / board

    return {device: seconds(device, samples) for device, samples in shards.items()}


def _evaluation_s(study: Study, architecture: Model, records: int, participants: int) -> float:
    """Seconds of a round's evaluations of one device, each a pass forward over its records and the test set."""
    epochs = local_work(study)
    aggregates = study.method in PARAMETER_SHARING
    phases = sum(1 for each in epochs if each)
    times = {"epoch": sum(epochs) + aggregates, "phase": phases + aggregates, "round": 1}[study.evaluation.every]
    return _on_this_machine(study, architecture, architecture.flops / 3 * records * times, participants)


def _on_this_machine(study: Study, architecture: Model, flops: float, participants: int) -> float:
    """Seconds of one device's work here, where all devices share the cores."""
    speed = speed_here(study.training, architecture.input_dim)
    return flops / speed * max(1.0, participants / (os.cpu_count() or 1))


def _notes(study: Study, dataset: Dataset, uploaded: int, most_records: int) -> Iterable[str]:
    if HOST in several(study.hardware):
        speed = speed_here(study.training, dataset.input_dim) / 1e9
        cores = counted(os.cpu_count() or 1, "core")
        yield f"training assumes {speed:.0f} GFLOP/s, as just measured, for each of {cores} here"
    for profile in map(link, () if study.is_local else dict.fromkeys(several(study.link))):
        if profile.up_changes or profile.down_changes or profile.outages:
            rates = " up, ".join(f"{rate / 1000:g} kbit/s" for rate in (profile.up, profile.down) if rate is not None)
            yield (
                f"link {profile.name} changes with time: transfers are planned as if each round began when it does, at "
                f"{rates} down"
            )
    if study.is_local:
        yield f"method {study.method} uses no network: link and participation are nothing to it"
    elif study.participation.fraction < 1 or study.participation.dropout:
        yield "the devices that take part change with the round; the figures are those of round 1"
    if study.method == "centralized":
        size = bytes_text(dataset.train.nbytes)
        yield f"the records of all devices, {size}, must be brought to one place first; no ledger holds that"
    if study.method != "gca":
        return
    yield from guarantee.remarks(study, most_records)
    if study.clustering.components > uploaded:
        codes = counted(uploaded, "code")
        yield f"{codes} cannot make {study.clustering.components} clusters: K is reduced to {uploaded}"
    if study.dataset == "bank":
        yield (
            f"bank's shards upload {BANK_UPLOADED_CODES:,} codes in all at the paper's settings; the paper prints "
            f"{BANK_UPLOADED_CODES_PUBLISHED:,}, which no split it describes gives"
        )
