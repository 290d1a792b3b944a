"""What a study will cost, worked out before anything runs.

The messages of one round are really built and encoded; the link model says how long they take. Exact: payload bytes,
and message bytes but for a byte or two per message (sequence numbers grow). Estimated: wire bytes (segments may be
shared between messages) and seconds.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from broker_server.broker.encode import encoded_size
from broker_server.broker.packets import Publish
from edge_client.cohort import EVERYONE
from edge_client.errors import ConfigError
from edge_client.methods.gca import upload_size
from edge_client.model.autoencoder import Architecture
from edge_client.protocol import topics
from edge_client.protocol.chunks import MAX_CHUNK, split
from edge_client.protocol.codec import Arrays, encode, encode_arrays
from edge_client.protocol.messages import SERVER, Accept, Chunk, Header, RoundState
from sim.config import Study
from sim.data import Dataset
from sim.data.partition import device_name, iid
from sim.emulation.workload import demands
from sim.hardware import hardware
from sim.links.link import LinkSpec, LinkState
from sim.links.link import plan as plan_link
from sim.links.profiles import chunk_size, downlink, link, uplink
from sim.payload import payload_bytes, uploaded_codes

HOST_FLOPS = 4.5e10
"""Arithmetic of the numpy trainer on one core of the machine it was timed on (`benchmarks/trainer.py`)."""
TYPICAL_SEQ = 1000
PUBACK = 4


@dataclass(frozen=True)
class Bytes:
    up: int
    down: int


@dataclass(frozen=True)
class StudyPlan:
    """Bytes per round over all devices; seconds per round of the slowest device; memory and descriptors of this
    machine for the emulation. `parameters` is P, `uploaded` is U."""

    parameters: int
    uploaded: int
    payload: Bytes
    message: Bytes
    wire: Bytes
    training_s: float
    transfer_s: float
    memory_bytes: int
    file_descriptors: int

    @property
    def seconds_per_round(self) -> float:
        return self.training_s + self.transfer_s


@dataclass(frozen=True)
class _Sent:
    """One message on its way: its topic and its encoded size."""

    topic: str
    size: int

    @property
    def packet(self) -> int:
        return encoded_size(Publish(self.topic, bytes(self.size), qos=1, packet_id=1))


def plan_study(study: Study, dataset: Dataset) -> StudyPlan:
    """Return what a round of this study costs; raises `ConfigError` if a device would have nothing to upload."""
    profile, hyper = link(study.link), study.training
    architecture = Architecture(dataset.input_dim, hyper.hidden, hyper.latent_dim)
    shards = [len(rows) for rows in iid(len(dataset.train), study.devices, study.seed, study.data.minimum_records)]
    if upload_size(hyper.upload_fraction, min(shards)) == 0:
        raise ConfigError(
            f"training.upload_fraction: {hyper.upload_fraction} of {min(shards)} records is less than one code; "
            "raise it or use fewer devices"
        )
    uploaded = uploaded_codes(hyper.upload_fraction, shards)
    components = min(study.clustering.components, uploaded)
    run = f"{study.dataset}-{study.method}-20260101-000000-10000.00000000"
    up = [_uploads(run, device_name(i), n, study, chunk_size(profile)) for i, n in enumerate(shards, start=1)]
    down = _downs(run, components, hyper.latent_dim)
    payload = payload_bytes(study.method, devices=study.devices, uploaded_codes=uploaded, latent_dim=hyper.latent_dim,
                            components=components, parameters=architecture.parameters)  # fmt: skip
    sent_up, sent_down = [message for device in up for message in device], down * study.devices
    memory, descriptors = demands(study.devices)
    return StudyPlan(
        architecture.parameters, uploaded, Bytes(*payload),
        Bytes(sum(m.size for m in sent_up), sum(m.size for m in sent_down)),
        Bytes(_wire(sent_up, sent_down, uplink(profile)), _wire(sent_down, sent_up, downlink(profile))),
        _training_s(study, architecture, max(shards)),
        max(_transfer_s(one, uplink(profile)) for one in up) + _transfer_s(down, downlink(profile)),
        memory, descriptors,
    )  # fmt: skip


def _uploads(run: str, device: str, samples: int, study: Study, chunk: int) -> list[_Sent]:
    codes = upload_size(study.training.upload_fraction, samples)
    latents = np.zeros((codes, study.training.latent_dim), np.float32)
    name = run.rsplit(".", 1)[0]
    chunks = _chunks(run, device, {"latents": latents}, chunk)
    return [_Sent(topics.upload(name, device, c.round, c.index), len(encode(c))) for c in chunks]


def _downs(run: str, components: int, latent_dim: int) -> list[_Sent]:
    """What each device receives in a round: open, accept, closed, broadcast."""
    name, device = run.rsplit(".", 1)[0], device_name(1)
    arrays = {
        "centroids": np.zeros((components, latent_dim), np.float32),
        "support": np.zeros(components, np.float32),
    }
    chunks = list(_chunks(run, SERVER, arrays, MAX_CHUNK))
    common = {"run": run, "round": 50, "device": SERVER, "seq": TYPICAL_SEQ}
    states: list[Header] = [
        RoundState(**common, state="open", cohort=EVERYONE, deadline_s=1.5),  # type: ignore[arg-type]
        RoundState(**common, state="closed", chunks=len(chunks), size=chunks[0].size, digest=chunks[0].digest),  # type: ignore[arg-type]
    ]
    told = [_Sent(topics.round_state(name), len(encode(state))) for state in states]
    told.append(_Sent(topics.down(name, device, "accept"), len(encode(Accept(**common)))))  # type: ignore[arg-type]
    return told + [_Sent(topics.broadcast(name, c.round, c.index), len(encode(c))) for c in chunks]


def _chunks(run: str, device: str, arrays: Arrays, size: int) -> Iterable[Chunk]:
    return split(encode_arrays(arrays), size, run=run, round=50, device=device, seq=lambda: TYPICAL_SEQ)


def _wire(sent: list[_Sent], received: list[_Sent], spec: LinkSpec) -> int:
    """Bytes of one direction: packets and their headers, MQTT's acknowledgements of what comes the other way, and
    TCP's, one for every two segments of the other direction."""
    segments = [-(-message.packet // spec.mss) for message in sent]
    opposite = sum(-(-message.packet // spec.mss) for message in received) + len(sent)
    packets = sum(message.packet for message in sent) + PUBACK * len(received)
    return packets + spec.header * (sum(segments) + len(received)) + spec.header * (opposite // 2)


def _transfer_s(messages: list[_Sent], spec: LinkSpec) -> float:
    """Seconds until the last of these messages has arrived, handed over at once."""
    state, arrive = LinkState(spec), 0.0
    for message in messages:
        state, planned = plan_link(state, message.packet, 0.0)
        arrive = planned.arrive
    return arrive


def _training_s(study: Study, architecture: Architecture, samples: int) -> float:
    """Seconds of both local phases of the largest device; on the host all devices share its cores."""
    hyper = study.training
    flops = 6.0 * samples * (
        hyper.recon_epochs * architecture.parameters + hyper.align_epochs * architecture.encoder_parameters
    )  # fmt: skip
    board = hardware(study.hardware).training_flops
    if board is not None:
        return flops / board
    return flops / HOST_FLOPS * -(-study.devices // (os.cpu_count() or 1))
