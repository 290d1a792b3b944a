"""The messages of one round, really built and encoded, so that `gca plan` knows their sizes.

Exact but for a byte or two per message: sequence numbers grow, and round 1 names no deadline.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from broker_server.broker.encode import encoded_size
from broker_server.broker.packets import Publish
from edge_client.methods.gca import upload_size
from edge_client.methods.registry import method
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import Arrays, encode, encode_arrays
from edge_client.protocol.messages import SERVER, Accept, Chunk, Cohort, RoundState
from sim.config.devices import device_links
from sim.config.study import Study
from sim.data.partition import device_name
from sim.links.profiles import broadcast_chunk, chunk_size

RUN = "20260101-000000-10000"
"""What the name of a run looks like behind its dataset and method, as `sim.studies` makes it."""
TYPICAL_ROUND, TYPICAL_SEQ = 50, 1000
PUBACK = 4


@dataclass(frozen=True)
class Message:
    """One message on its way: its topic and its encoded size."""

    topic: str
    size: int

    @property
    def packet(self) -> int:
        return encoded_size(Publish(self.topic, bytes(self.size), qos=1, packet_id=1))


@dataclass(frozen=True)
class Traffic:
    """What one device sends and hears in a round. Who does not take part hears the round's states, and the broadcast
    if the method means it for all."""

    up: list[Message]
    states: list[Message]
    accept: Message | None
    broadcast: list[Message]

    @property
    def down(self) -> list[Message]:
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


def traffic(study: Study, shards: Mapping[str, int], cohort: Cohort, chosen: Sequence[str], components: int,
            parameters: int) -> dict[str, Traffic]:  # fmt: skip
    """Return what each device sends and hears in a round, of which `chosen` take part; nobody does without a network.

    shards: each device's number of records. components: K as it will be. parameters: P.
    """
    if study.is_local:
        return {}
    links, run = device_links(study), f"{study.dataset}-{study.method}-{RUN}"
    vector: Arrays = {"parameters": np.zeros(parameters, np.float32)}
    centroids: Arrays = {"centroids": np.zeros((components, study.training.latent_dim), np.float32),
                         "support": np.zeros(components, np.float32)}  # fmt: skip
    down = centroids if study.method == "gca" else vector

    @cache  # devices whose names are as long send messages as long
    def upload(name: int, samples: int, chunk: int) -> list[Message]:
        device, codes = "x" * name, upload_size(study.training.upload_fraction, samples)
        latents: Arrays = {"latents": np.zeros((codes, study.training.latent_dim), np.float32)}
        chunks = _chunks(run, device, latents if study.method == "gca" else vector, chunk)
        return [Message(topics.upload(run, device, c.round, c.index), len(encode(c))) for c in chunks]

    listening = links if method(study.method).hears_all_broadcasts else chosen
    states, accept, broadcast = _downs(run, cohort, down, min(broadcast_chunk(links[device]) for device in listening))
    idle = Traffic([], states, None, broadcast if method(study.method).hears_all_broadcasts else [])
    taking_part = {
        device: Traffic(upload(len(device), shards[device], chunk_size(links[device])), states, accept, broadcast)
        for device in chosen
    }
    return {device: taking_part.get(device, idle) for device in shards}


def _downs(run: str, cohort: Cohort, arrays: Arrays, chunk: int) -> tuple[list[Message], Message, list[Message]]:
    """Return what every device hears in a round (open, closed), the acceptance of an upload, and the broadcast."""
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
        [Message(topics.round_state(run), len(encode(state))) for state in states],
        Message(topics.down(run, device_name(1), "accept"), len(encode(accept))),
        [Message(topics.broadcast(run, c.round, c.index), len(encode(c))) for c in chunks],
    )


def _chunks(run: str, device: str, arrays: Arrays, size: int) -> Iterable[Chunk]:
    return split(encode_arrays(arrays), size, run=_incarnation(run), round=TYPICAL_ROUND, device=device,
                 seq=lambda: TYPICAL_SEQ)  # fmt: skip


def _incarnation(run: str) -> str:
    """Return a run's name as messages have it; see `edge_client.protocol.messages`."""
    return f"{run}.00000000"
