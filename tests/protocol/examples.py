"""Strategies for every message type, drawn over the whole range that a peer may legally send."""

from hypothesis import strategies as st

from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol.messages import (
    NAME,
    Accept,
    Chunk,
    Cohort,
    Evaluation,
    Header,
    Join,
    Presence,
    Reject,
    RoundState,
    Standing,
    Tally,
    Telemetry,
    Welcome,
)

NAMES = st.from_regex(NAME.replace(r"\Z", ""), fullmatch=True)
COUNTS = st.integers(0, 2**32)
INSTANCES = st.binary(min_size=4, max_size=4).map(bytes.hex)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
DIGESTS = st.binary(min_size=8, max_size=8)
RATES = st.floats(0, 1e15)
SECONDS = st.floats(0, 1e9)
FINITE = st.floats(allow_nan=False)

HEADER = {"run": NAMES, "round": COUNTS, "device": NAMES, "seq": COUNTS}

STANDINGS = st.builds(
    Standing,
    round=COUNTS,
    state=st.sampled_from(["nothing", "unseen", "partial", "accepted", "rejected", "closed", "pending", "gone"]),
    missing=st.lists(COUNTS, max_size=20).map(tuple),
)
HYPERS = st.builds(
    Hyperparameters,
    hidden=st.lists(st.integers(1, 65_536), max_size=8).map(tuple),
    latent_dim=st.integers(1, 65_536),
    learning_rate=st.floats(1e-9, 1e9),
    upload_fraction=st.floats(1e-9, 1.0),
    init=st.sampled_from(["shared", "independent"]),
)
EVALUATIONS = st.builds(
    Evaluation,
    phase=st.sampled_from(["initial", "recon", "align", "global"]),
    epoch=COUNTS,
    loss=FINITE,
    threshold=FINITE,
    accuracy=FINITE,
    auroc=FINITE,
    average_precision=FINITE,
)
TALLIES = st.builds(
    Tally,
    direction=st.sampled_from(["up", "down"]),
    kind=st.sampled_from(["upload", "broadcast", "control", "telemetry", "ignored"]),
    messages=COUNTS,
    payload_bytes=COUNTS,
    message_bytes=COUNTS,
)

BY_TYPE: dict[type[Header], st.SearchStrategy[Header]] = {
    Presence: st.builds(
        Presence,
        **HEADER,
        state=st.sampled_from(["online", "lost", "left", "failed"]),
        instance=INSTANCES,
        detail=TEXTS,
    ),
    Join: st.builds(
        Join,
        **HEADER,
        instance=INSTANCES,
        samples=st.integers(1, 2**32),
        input_dim=st.integers(1, 65_536),
        up_rate=RATES,
        down_rate=RATES,
        awaits=st.sampled_from(["nothing", "acceptance", "broadcast"]),
    ),
    Welcome: st.builds(
        Welcome,
        **HEADER,
        instance=INSTANCES,
        method=NAMES,
        seed=st.integers(0, 2**63 - 1),
        rounds=COUNTS,
        hyper=HYPERS,
        standing=STANDINGS,
    ),
    RoundState: st.builds(
        RoundState,
        **HEADER,
        state=st.sampled_from(["waiting", "open", "closed", "ended"]),
        cohort=st.none() | st.builds(Cohort, below=DIGESTS),
        deadline_s=st.none() | RATES,
        chunks=COUNTS,
        size=COUNTS,
        digest=DIGESTS,
        reason=st.text(max_size=60),
    ),
    Chunk: st.builds(
        Chunk,
        **HEADER,
        index=st.integers(0, 65_535),
        chunks=st.integers(1, 65_536),
        size=st.integers(1, 2**40),
        digest=DIGESTS,
        data=st.binary(max_size=300),
    ),
    Accept: st.builds(Accept, **HEADER),
    Reject: st.builds(
        Reject,
        **HEADER,
        reason=st.sampled_from(["late", "invalid", "duplicate", "unfit"]),
        detail=TEXTS,
        instance=st.just("") | INSTANCES,
    ),
    Telemetry: st.builds(
        Telemetry,
        **HEADER,
        outcome=st.sampled_from(["completed", "late", "rejected", "missed", "idle"]),
        detail=TEXTS,
        spent_s=st.dictionaries(NAMES, SECONDS, max_size=5),
        spans_s=st.dictionaries(NAMES, st.tuples(SECONDS, SECONDS), max_size=5),
        tallies=st.lists(TALLIES, max_size=4).map(tuple),
        evaluations=st.lists(EVALUATIONS, max_size=3).map(tuple),
        ignored=st.dictionaries(NAMES, COUNTS, max_size=5),
        state_sha256=st.text("0123456789abcdef", max_size=64),
    ),
}
MESSAGES = st.one_of(*BY_TYPE.values())
TYPES = tuple(BY_TYPE)
