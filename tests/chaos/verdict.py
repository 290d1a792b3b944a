"""What must hold of a run under faults: every upload counts once, and both ends' ledgers fit each other."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chaos.network import SERVER_SIDE
from device.in_memory import HYPER as BASE
from device.in_memory import RECORDS, WIDTH

from edge_client.model.choice import trainer_for
from edge_client.protocol.messages import Tally

if TYPE_CHECKING:
    from chaos.run import Run

INFLIGHT = 20
"""Messages that a broker sends again to a server whose connection has ended."""


def counted_twice(run: "Run") -> Iterator[str]:
    """Yield what went into the rounds' aggregates more than once, or from nowhere."""
    witness = run.witness
    if twice := [one for one, times in Counter(witness.accepted).items() if times > 1]:
        yield f"accepted twice: {twice}"
    rounds = [round for round, _ in run.spy.given]
    if rounds != list(range(1, len(rounds) + 1)):
        yield f"rounds aggregated: {rounds}"
    for round, uploads in run.spy.given:
        if sorted(uploads) != sorted(device for r, device in witness.accepted if r == round):
            yield f"round {round} aggregated {sorted(uploads)}, not what was accepted"
        for device, content in uploads.items():
            known = {life.session.uploads.get(round) for life in run.lives[device]}
            if content not in known:
                yield f"round {round}: the upload of {device} is none that it made"
    for record in witness.records:
        if sorted(record.accepted) != sorted(d for r, d in witness.accepted if r == record.round):
            yield f"round {record.round}: the record says {record.accepted}"


def _received(run: "Run") -> dict[str, tuple[Tally, ...]]:
    """What the server counted from each device."""
    witness, found = run.witness, defaultdict(list)
    for tallies in (*(r.tallies for r in witness.records), *(c.tallies for c in witness.closings)):
        for device, some in tallies.items():
            found[device] += [tally for tally in some if tally.direction == "up"]
    for amendment in witness.amendments:
        found[amendment.device].append(amendment.tally)
    return {device: tuple(some) for device, some in found.items()}


def ledgers_that_disagree(run: "Run") -> Iterator[str]:
    """Yield where more was received than was sent, or less over a connection that never broke."""
    received, kinds = _received(run), Counter(fault.kind for fault in run.faults)
    resent = INFLIGHT * (kinds["server cut"] + kinds["server kill"] + kinds["broker"] + kinds["broker with memory"])
    size = 4 * BASE.latent_dim * int(RECORDS * BASE.upload_fraction) if run.setting.method == "gca" else (
        4 * trainer_for(BASE, WIDTH).parameter_count
    )  # fmt: skip
    for name in run.setting.names:
        here = received.get(name, ())
        payload = sum(tally.payload_bytes for tally in here)
        accepted = sum(device == name for _, device in run.witness.accepted)
        if payload != accepted * size:
            yield f"{name}: {payload} payload bytes counted for {accepted} uploads of {size} bytes"
        sent = [t for life in run.lives[name] for t in (*life.sent, *life.session.tally.drain())]
        up = [tally for tally in sent if tally.direction == "up"]
        connections = run.network.counters(name)[name].connections
        doubled = run.network.tampering[name].doubled_messages
        twice = doubled + run.network.tampering[SERVER_SIDE].heard_twice[name]
        most = sum(tally.messages for tally in up) + twice + connections + resent
        if sum(tally.messages for tally in here) > most:
            yield f"{name}: {sum(t.messages for t in here)} messages counted, at most {most} sent"
        died = len(run.lives[name]) > 1 or run.lives[name][0].dead
        if connections == 1 and not (died or twice or resent or kinds["corrupt"]):
            ours = [sum(t.message_bytes for t in some if t.kind == "upload") for some in (up, here)]
            if ours[0] != ours[1]:
                yield f"{name}: {ours[0]} bytes of uploads sent, {ours[1]} received, and none was lost"
