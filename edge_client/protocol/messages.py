"""Every message that crosses the wire, as a typed, frozen struct.

A message belongs to one topic kind (`topics.py`), so its type is known before its bytes are read. All carry
(run, round, device, seq): what is stale, foreign or a duplicate is recognised by these four alone.

`run` names the run and the life of its server (`lives.py`: "magic.5f0c21aa", "magic.5f0c21aa.1"): retained messages of
an older server under the same topics do not match it. A device learns it from `Welcome`; until then it sends the bare
run name.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_client.hyperparameters import Hyperparameters

VERSION: Literal[1] = 1
SERVER = "server"
"""The `device` field, user name and client id of the server."""
FAREWELL_S = 10.0
"""How long after the end of a run the server stays for devices that were cut off: whom it has not answered by then
it never will."""

MAX_EVALUATIONS = 20_000
"""Evaluations that a device may report of one round."""
MAX_ENTRIES = 64
"""Stages, tallies and reasons that it may name in one report: far more than there are, far fewer than fit."""

COMPLETED = "completed"
"""The reason of an end after all rounds; any other says what went wrong."""

MAX_CHUNKS = 65_536
"""Chunks of one body."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"  # "$" would let a line break follow
Name = Annotated[str, Meta(pattern=NAME)]
RunName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,70}\Z")]  # room for the number of a life
Instance = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**32)]
Text = Annotated[str, Meta(max_length=300)]
Rate = Annotated[float, Meta(ge=0.0, le=1e15)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]  # neither NaN nor infinite
Digest = Annotated[bytes, Meta(min_length=8, max_length=8)]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common to all messages. `seq` grows by one with each message of a sender's process."""

    v: Literal[1] = msgspec.field(default_factory=lambda: VERSION)  # a factory's value is sent despite `omit_defaults`
    run: RunName
    round: Count = 0
    device: Name
    seq: Count


class Presence(Header, frozen=True, kw_only=True):
    """`pres/<device>`, retained; as last will with state "lost". `instance` names the device's process."""

    state: Literal["online", "lost", "left", "failed"]
    instance: Instance
    detail: Text = ""


class Join(Header, frozen=True, kw_only=True):
    """`join/<device>`: capabilities; sent on every connection and whenever the device must ask where it stands.

    `awaits` says what the device needs from the server for `round`: nothing, the fate of its upload, or the
    broadcast. Rates in bits/s, 0 for unknown.
    """

    instance: Instance
    samples: Annotated[int, Meta(ge=1, le=2**32)]
    input_dim: Annotated[int, Meta(ge=1, le=65_536)]
    up_rate: Rate = 0.0
    down_rate: Rate = 0.0
    awaits: Literal["nothing", "acceptance", "broadcast"] = "nothing"


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the server stands with what a device awaits for `round`.

    An upload: "unseen", "partial" (with the chunks still missing), "accepted", "rejected", or "closed" (the round
    is over). A broadcast: "pending", "follows" (sent to this device alone, now), or "gone".
    """

    round: Count
    state: Literal["nothing", "unseen", "partial", "accepted", "rejected", "closed", "pending", "follows", "gone"]
    missing: Annotated[tuple[Count, ...], Meta(max_length=MAX_CHUNKS)] = ()


class Welcome(Header, frozen=True, kw_only=True):
    """`dn/<device>/welcome`: the answer to `Join`. Holds all a device needs to take part.

    `round` is the last round opened; a device that joins for the first time takes part from the next one on.
    """

    instance: Instance
    method: Name
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    rounds: Count
    hyper: Hyperparameters
    standing: Standing


class Cohort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who takes part: every device whose digest of (seed, "cohort", round, device) is at most `below`.

    The server chooses `below` so that exactly the wanted number of devices falls under it; the message has the
    same size for ten devices and for ten thousand. Eight big-endian bytes each, compared as such.
    """

    below: Digest


class RoundState(Header, frozen=True, kw_only=True, omit_defaults=True):
    """`round`, retained, under 200 bytes (fields at their default do not travel): what the federation does now.

    "waiting" for devices; "open": the cohort trains and uploads within `deadline_s` seconds (None: no limit yet);
    "closed": the broadcast of this round follows in `chunks` chunks of `size` bytes in all with this digest
    (0: this round has none); "ended": the run is over, `reason` says how. Where a server repeats one of the first two
    on a new connection, `reason` names its process.
    """

    state: Literal["waiting", "open", "closed", "ended"]
    cohort: Cohort | None = None
    deadline_s: Annotated[float, Meta(ge=0.0)] | None = None
    chunks: Count = 0
    size: Count = 0
    digest: Digest = b"\0" * 8
    reason: Annotated[str, Meta(max_length=60)] = ""


class Chunk(Header, frozen=True, kw_only=True):
    """`up/<device>/<round>/<index>`, `bc/<round>/<index>` and `dn/<device>/bc/<round>/<index>`: a slice of a body."""

    index: Annotated[int, Meta(ge=0, le=MAX_CHUNKS - 1)]
    chunks: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]
    size: Annotated[int, Meta(ge=1)]
    digest: Digest
    data: bytes


class Accept(Header, frozen=True, kw_only=True):
    """`dn/<device>/accept`: the server holds the whole upload of this round. Only this proves it, no PUBACK does."""


class Reject(Header, frozen=True, kw_only=True):
    """`dn/<device>/reject`: the server will not use what it was sent.

    "late" and "invalid" concern the upload of `round`; "duplicate" the `instance` that tried to join under a
    name in use; "unfit" a device that cannot take part (wrong width, say).
    """

    reason: Literal["late", "invalid", "duplicate", "unfit"]
    detail: Text
    instance: Annotated[str, Meta(max_length=8)] = ""


class Probe(Header, frozen=True, kw_only=True):
    """`dn/<device>/probe`: another process claims this name; the `instance` that holds it says so by its presence."""

    instance: Instance


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor on the wire: raw little-endian bytes in C order."""

    dtype: Literal["<f2", "<f4", "<f8", "<i4", "<i8", "|i1", "|u1"]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31)], ...], Meta(max_length=4)]
    data: bytes


Phase = Literal["initial", "recon", "align", "global"]
"""When a model is judged, in the order of a round: untrained; after an epoch on the reconstruction loss; after one on
the alignment loss; after the round's aggregate was taken over."""


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One evaluation of one device's model on its test set; NaN where undefined."""

    phase: Phase
    epoch: Count
    loss: float
    threshold: float
    accuracy: float
    auroc: float
    average_precision: float


class Tally(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one end counted of one kind of traffic in one direction (the ledgers of `tally.py`); "ignored" is what
    arrived and was of no use: stale, foreign, malformed."""

    direction: Literal["up", "down"]
    kind: Literal["upload", "broadcast", "control", "telemetry", "ignored"]
    messages: Count = 0
    payload_bytes: Count = 0
    message_bytes: Count = 0


class Telemetry(Header, frozen=True, kw_only=True):
    """`met/<device>`: what a device reports of a finished round. Never part of the algorithm.

    Many evaluations travel in parts, the first of which holds all the rest. `outcome` says how the round ended for the
    device. `spent_s` holds seconds by stage (reconstruction, upload, wait, alignment), `spans_s` how long before this
    report each began and ended, which needs no common clock. `state_sha256` is over the model's parameters after the
    round.
    """

    outcome: Literal["completed", "late", "rejected", "missed", "idle"]
    detail: Text = ""
    spent_s: Annotated[dict[Name, Seconds], Meta(max_length=MAX_ENTRIES)]
    spans_s: Annotated[dict[Name, tuple[Seconds, Seconds]], Meta(max_length=MAX_ENTRIES)] = {}
    tallies: Annotated[tuple[Tally, ...], Meta(max_length=MAX_ENTRIES)]
    evaluations: Annotated[tuple[Evaluation, ...], Meta(max_length=MAX_EVALUATIONS)]
    ignored: Annotated[dict[Name, Count], Meta(max_length=MAX_ENTRIES)]
    state_sha256: Annotated[str, Meta(max_length=64)]
