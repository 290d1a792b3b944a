"""What a study will cost, worked out before anything runs.

The messages of one round are really built and encoded; the link model says how long they take. Exact: payload bytes,
and message bytes but for a byte or two per message (sequence numbers grow, and round 1 names no deadline). Estimated:
wire bytes (whether two small packets share a segment is a matter of milliseconds) and seconds.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor

import numpy as np

from broker_server.broker.encode import encoded_size
from broker_server.broker.packets import Publish
from edge_client.cohort import draw
from edge_client.errors import ConfigError
from edge_client.methods.gca import upload_size
from edge_client.model.autoencoder import Architecture
from edge_client.model.choice import architecture_for
from edge_client.model.convolutional import ConvolutionalArchitecture
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import Arrays, encode, encode_arrays
from edge_client.protocol.messages import SERVER, Accept, Chunk, Cohort, RoundState
from sim.config import Study
from sim.data import Dataset
from sim.data.partition import device_name, shares
from sim.emulation.workload import demands
from sim.hardware import hardware
from sim.links.link import LinkSpec, LinkState
from sim.links.link import plan as plan_link
from sim.links.profiles import broadcast_chunk, chunk_size, downlink, link, uplink
from sim.payload import BANK_UPLOADED_CODES, BANK_UPLOADED_CODES_PUBLISHED, payload_bytes, uploaded_codes
from sim.units import duration_text

HOST_FLOPS = 4.5e10
"""Arithmetic of the numpy trainer on one core of the machine it was timed on (`benchmarks/trainer.py`)."""
RUN = "20260101-000000-10000"
"""What the name of a run looks like behind its dataset and method, as `sim.studies` makes it."""
TYPICAL_ROUND, TYPICAL_SEQ = 50, 1000
PUBACK = 4
SLOW_S = 3600.0
"""A round longer than this is worth a warning."""

Model = Architecture | ConvolutionalArchitecture


@dataclass(frozen=True)
class Bytes:
    up: int
    down: int


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


@dataclass(frozen=True)
class _Message:
    """One message on its way: its topic and its encoded size."""

    topic: str
    size: int

    @property
    def packet(self) -> int:
        return encoded_size(Publish(self.topic, bytes(self.size), qos=1, packet_id=1))


@dataclass(frozen=True)
class _Traffic:
    """What one device sends and hears in a round. Who does not take part hears the round's states only."""

    up: list[_Message]
    states: list[_Message]
    accept: _Message | None
    broadcast: list[_Message]

    @property
    def down(self) -> list[_Message]:
        return [*self.states, *([self.accept] if self.accept else []), *self.broadcast]

    @property
    def up_bursts(self) -> list[int]:
        """MQTT bytes that travel together: each chunk, and the acknowledgements of each burst that came down."""
        told = PUBACK * (len(self.states) + len(self.broadcast))
        return [*(message.packet for message in self.up), *([PUBACK] if self.accept else []), told]

    @property
    def down_bursts(self) -> list[int]:
        """The acknowledgement of each chunk, the last one with the acceptance; the end of a round with the broadcast
        and the opening of the next, which follow at once."""
        pubacks = [PUBACK] * len(self.up)
        if self.accept:
            pubacks[-1] += self.accept.packet
        return [*pubacks, sum(message.packet for message in self.states + self.broadcast)]


def plan_study(study: Study, dataset: Dataset) -> StudyPlan:
    """Return what a round of this study costs; raises `ConfigError` if a device would have nothing to upload."""
    profile, hyper = link(study.link), study.training
    architecture = architecture_for(hyper, dataset.input_dim)
    shards = _shards(study, dataset)
    cohort, chosen = draw(shards, max(1, floor(study.participation.fraction * len(shards) + 1e-9)), study.seed, 1)
    uploaded = uploaded_codes(hyper.upload_fraction, [shards[device] for device in chosen])
    components = min(study.clustering.components, uploaded)

    def payload(method: str) -> Bytes:
        return Bytes(*payload_bytes(method, devices=len(chosen), uploaded_codes=uploaded, latent_dim=hyper.latent_dim,
                                    components=components, parameters=architecture.parameters))  # fmt: skip

    run = f"{study.dataset}-{study.method}-{RUN}"
    chunk, up_link, down_link = chunk_size(profile), uplink(profile), downlink(profile)
    states, accept, broadcast = _downs(run, cohort, components, hyper.latent_dim, broadcast_chunk(profile))
    traffic = [_Traffic([], states, None, [])] * (len(shards) - len(chosen)) + [
        _Traffic(_uploads(run, device, shards[device], study, chunk), states, accept, broadcast) for device in chosen
    ]
    memory, descriptors = demands(study)
    return StudyPlan(
        parameters=architecture.parameters, participants=len(chosen), uploaded=uploaded,
        payload=payload(study.method), full_exchange=payload("parameter_sharing"),
        message=Bytes(sum(m.size for one in traffic for m in one.up), sum(m.size for one in traffic for m in one.down)),
        wire=Bytes(sum(_wire(one.up_bursts, one.down_bursts, up_link) for one in traffic),
                   sum(_wire(one.down_bursts, one.up_bursts, down_link) for one in traffic)),
        training_s=_training_s(study, architecture, max(shards[device] for device in chosen), len(chosen)),
        transfer_s=max(_transfer_s(one.up, up_link) + _transfer_s(one.down, down_link) for one in traffic),
        evaluation_s=_evaluation_s(study, architecture, max(shards.values()) + len(dataset.test), len(chosen)),
        memory_bytes=memory, file_descriptors=descriptors, notes=tuple(_notes(study, uploaded)),
    )  # fmt: skip


def warnings(study: Study, planned: StudyPlan) -> list[str]:
    """Return what the reader of a plan must not miss, each one line with its mend."""
    found, each, deadline = [], planned.seconds_per_round, study.participation.deadline
    if each > SLOW_S:
        found.append(
            f"a round takes {duration_text(each)} on link {study.link}, all {study.rounds} rounds "
            f"{duration_text(each * study.rounds)}; choose a faster link, fewer rounds or a smaller "
            "training.upload_fraction"
        )
    if deadline != "auto" and deadline < each:
        found.append(
            f"participation.deadline is {deadline:g} s, but a round takes about {duration_text(each)}: uploads will be "
            'late; raise it or leave it at "auto"'
        )
    return found


# ---- what is said --------------------------------------------------------------------------------------------------


def _shards(study: Study, dataset: Dataset) -> dict[str, int]:
    """Return the records of every device; each must yield a code to upload."""
    parts = shares(study, dataset)
    shards = {device_name(number): len(rows) for number, rows in enumerate(parts, start=1)}
    fewest = min(shards.values())
    if upload_size(study.training.upload_fraction, fewest) == 0:
        raise ConfigError(
            f"training.upload_fraction: {study.training.upload_fraction} of {fewest} records is less than one code; "
            "raise it or use fewer devices"
        )
    return shards


def _uploads(run: str, device: str, samples: int, study: Study, chunk: int) -> list[_Message]:
    codes = upload_size(study.training.upload_fraction, samples)
    latents = np.zeros((codes, study.training.latent_dim), np.float32)
    chunks = _chunks(run, device, {"latents": latents}, chunk)
    return [_Message(topics.upload(run, device, c.round, c.index), len(encode(c))) for c in chunks]


def _downs(
    run: str, cohort: Cohort, components: int, latent_dim: int, chunk: int
) -> tuple[list[_Message], _Message, list[_Message]]:
    """Return what every device hears in a round (open, closed), and what who takes part hears besides: its upload's
    acceptance, and the broadcast."""
    arrays = {
        "centroids": np.zeros((components, latent_dim), np.float32),
        "support": np.zeros(components, np.float32),
    }
    chunks = list(_chunks(run, SERVER, arrays, chunk))
    first, name = chunks[0], _incarnation(run)
    states = [
        RoundState(run=name, round=TYPICAL_ROUND, device=SERVER, seq=TYPICAL_SEQ, state="open", cohort=cohort,
                   deadline_s=1.5),
        RoundState(run=name, round=TYPICAL_ROUND, device=SERVER, seq=TYPICAL_SEQ, state="closed", chunks=first.chunks,
                   size=first.size, digest=first.digest),
    ]  # fmt: skip
    accept = Accept(run=name, round=TYPICAL_ROUND, device=SERVER, seq=TYPICAL_SEQ)
    return (
        [_Message(topics.round_state(run), len(encode(state))) for state in states],
        _Message(topics.down(run, device_name(1), "accept"), len(encode(accept))),
        [_Message(topics.broadcast(run, c.round, c.index), len(encode(c))) for c in chunks],
    )


def _chunks(run: str, device: str, arrays: Arrays, size: int) -> Iterable[Chunk]:
    return split(encode_arrays(arrays), size, run=_incarnation(run), round=TYPICAL_ROUND, device=device,
                 seq=lambda: TYPICAL_SEQ)  # fmt: skip


def _incarnation(run: str) -> str:
    """Return a run's name as messages have it; see `edge_client.protocol.messages`."""
    return f"{run}.00000000"


# ---- what it takes -------------------------------------------------------------------------------------------------


def _wire(sent: list[int], received: list[int], spec: LinkSpec) -> int:
    """Bytes of one direction of one device: its bursts in segments with headers, and TCP's acknowledgements, one for
    every two segments of the other direction."""
    segments, opposite = (sum(-(-burst // spec.mss) for burst in bursts) for bursts in (sent, received))
    return sum(sent) + spec.header * (segments + -(-opposite // 2))


def _transfer_s(messages: list[_Message], spec: LinkSpec) -> float:
    """Seconds until the last of these messages has arrived, handed over at once."""
    if spec.rate is None and not spec.delay and not spec.jitter:
        return 0.0
    state, arrive = LinkState(spec), 0.0
    for message in messages:
        state, planned = plan_link(state, message.packet, 0.0)
        arrive = planned.arrive
    return arrive


def _training_s(study: Study, architecture: Model, samples: int, participants: int) -> float:
    """Seconds of both local phases of the largest device."""
    hyper = study.training
    flops = samples * (hyper.recon_epochs * architecture.flops + hyper.align_epochs * architecture.encoder_flops)
    board = hardware(study.hardware).training_flops
    return _on_this_machine(flops, participants) if board is None else flops / board


def _evaluation_s(study: Study, architecture: Model, records: int, participants: int) -> float:
    """Seconds of a round's evaluations of one device, each a pass forward over its records and the test set."""
    epochs = (study.training.recon_epochs, study.training.align_epochs)
    times = sum(epochs) if study.evaluation.every == "epoch" else sum(1 for each in epochs if each)
    return _on_this_machine(architecture.flops / 3 * records * times, participants)


def _on_this_machine(flops: float, participants: int) -> float:
    """Seconds of one device's work here, where all devices share the cores."""
    return flops / HOST_FLOPS * max(1.0, participants / (os.cpu_count() or 1))


def _notes(study: Study, uploaded: int) -> Iterable[str]:
    if study.hardware == "host":
        yield (
            f"training and evaluation assume {HOST_FLOPS / 1e9:g} GFLOP/s for each of the {os.cpu_count()} cores here"
        )
    if study.participation.fraction < 1:
        yield "the devices that take part change with the round; the figures are those of round 1"
    if study.clustering.components > uploaded:
        yield f"{uploaded} codes cannot make {study.clustering.components} clusters: K is reduced to {uploaded}"
    if study.dataset == "bank":
        yield (
            f"bank's shards upload {BANK_UPLOADED_CODES:,} codes in all at the paper's settings; the paper prints "
            f"{BANK_UPLOADED_CODES_PUBLISHED:,}, which no split it describes gives"
        )
