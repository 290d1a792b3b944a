"""A device that sends rubbish is reported, refused or excluded, and changes nothing: not the models, not the round."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from device.in_memory import HYPER, PLAN, RECORDS, WIDTH, Federation
from server.driver import RUN, Aggregate, Driver, Record, Reject, notes, only, plan, told

from broker_server.rounds.conduct import Conduct
from broker_server.rounds.members import FEWEST_NAMES, Members, room_for
from broker_server.server import Server
from broker_server.study.store import StudyStore
from edge_client.offload import into
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import Arrays, decode, encode, encode_arrays
from edge_client.protocol.messages import Header, Join, Presence, RoundState, Telemetry, Welcome
from edge_client.transport.base import Settings, Transport
from sim.config.study import Participation
from sim.emulation.journal import Journal

# ---- by hand -------------------------------------------------------------------------------------------------------


def rubbish(run: Driver, device: str, count: int, now: float = 2.0) -> list:
    return [a for _ in range(count) for a in run.send(topics.join(RUN, device), b"\xc1", now)]


def test_one_message_more_than_the_limit_excludes_and_tells_why() -> None:
    run = Driver(plan(rubbish_limit=3))
    run.start("a", "b")
    assert rubbish(run, "a", 3) == []
    answer = rubbish(run, "a", 1)
    why = "more than 3 messages of no use (4 malformed)"
    assert notes(answer) == [f"a is excluded from round 1: {why}", f"round 1: upload of a refused: {why}"]
    assert [(r.reason, r.detail) for r in told(answer, Reject)] == [("invalid", why)]
    assert run.upload("a", 1, 2.5) == []  # not read any more
    assert list(only(run.upload("b", 1, 3.0), Aggregate).uploads) == ["b"]  # and not waited for
    record = only(run.aggregated(4.0), Record).record
    assert (record.accepted, record.rejected, record.missing) == (("b",), ("a",), ())
    (found,) = record.misconduct
    assert (found.device, found.useless, found.unread, found.excluded) == ("a", {"malformed": 4}, 1, why)


def test_the_next_round_asks_it_again() -> None:
    run = Driver(plan(rubbish_limit=3))
    run.start("a", "b")
    rubbish(run, "a", 9)
    run.play(1, 3.0, "b")
    run.upload("a", 2, 5.0)
    assert sorted(only(run.upload("b", 2, 5.0), Aggregate).uploads) == ["a", "b"]
    assert only(run.aggregated(6.0), Record).record.misconduct == ()


def test_what_was_accepted_before_counts() -> None:
    run = Driver(plan(rubbish_limit=3))
    run.start("a", "b")
    run.upload("a", 1, 2.0)
    assert told(rubbish(run, "a", 9), Reject) == []
    assert sorted(only(run.upload("b", 1, 3.0), Aggregate).uploads) == ["a", "b"]
    assert [one.excluded for one in only(run.aggregated(4.0), Record).record.misconduct] != [""]


def test_whether_an_excluded_device_is_there_is_still_heard_and_not_told() -> None:
    run = Driver(plan(rubbish_limit=1))
    run.start("a", "b")
    rubbish(run, "a", 2)
    assert [n for s in ("lost", "online", "lost") for n in notes(run.presence("a", 3.0, state=s))] == []
    assert run.online == ("b",)
    run.presence("a", 3.5)
    assert run.coordinator.collection is not None and list(run.coordinator.collection.outstanding) == ["b"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("malformed", "malformed"), ("of another run", "foreign"), ("another's", "malformed"), ("repeated", "duplicate"),
     ("a report of a round to come", "report_foreign"), ("of another width", "refused")],
)  # fmt: skip
def test_each_kind_of_rubbish_counts(kind: str, reason: str) -> None:
    run = Driver(plan(rubbish_limit=5))
    run.start("a", "b")
    (chunk,) = run.chunks("a", 1)
    run.chunk(chunk, 2.0)
    for _ in range(6):
        match kind:
            case "malformed":
                run.send(topics.upload(RUN, "a", 1, 0), b"\x00" * 40, 2.0)
            case "of another run":
                run.join("a", 2.0, run="hand.00000000")
            case "another's":
                run.send(topics.join(RUN, "a"), Presence(**run.head("b"), state="online", instance="00000000"), 2.0)
            case "repeated":
                run.chunk(chunk, 2.0)
            case "a report of a round to come":
                report = Telemetry(**run.head("a", 7), outcome="idle", spent_s={}, tallies=(), evaluations=(),
                                   ignored={}, state_sha256="")  # fmt: skip
                run.send(topics.telemetry(RUN, "a"), report, 2.0)
            case _:
                run.join("a", 2.0, width=99)
    (found,) = only(run.play(1, 3.0, "b"), Record).record.misconduct
    assert found.excluded.startswith("more than 5 messages of no use") and reason in found.excluded
    assert found.useless[reason] == 6


def test_messages_without_end_exclude_whatever_is_in_them() -> None:
    """Joins are answered, so they count for themselves."""
    run = Driver(plan(message_limit=50))
    run.start("a", "b")  # two messages each, before the round: forgotten as it opens
    said = [notes(run.join("a", 2.0)) for _ in range(51)]
    assert said[:50] == [[]] * 50 and said[50][0].endswith("more than 50 messages in one round")
    assert only(run.upload("b", 1, 3.0), Aggregate)


def test_a_slow_upload_in_small_pieces_and_the_late_one_before_are_no_flood() -> None:
    run = Driver(plan(message_limit=2, rounds=2))
    run.start("a", "b")
    conduct = Conduct(run.plan, run.coordinator.method, run.coordinator.members)
    for _ in range(2 + 2 * (1 + 24 // 256)):
        conduct.message("a", is_chunk=True)
    assert conduct.newly_excluded() == ()
    conduct.message("a", is_chunk=True)
    assert [device for device, _ in conduct.newly_excluded()] == ["a"]


@pytest.mark.parametrize(("norm", "fits"), [(1e6, True), (1.0001e6, False), (3e38, False)])
def test_a_code_beyond_the_norm_is_refused(norm: float, fits: bool) -> None:
    run = Driver()
    run.start("a", "b")
    codes = {"latents": np.array([[0.6 * norm, -0.8 * norm], [1, 2]], np.float32)}
    refusals = [r.detail for r in told(run.upload("a", 1, 2.0, codes), Reject)]
    assert (refusals == []) == fits and all("where 1e+06 is the limit" in detail for detail in refusals)


def test_the_documented_defaults_are_those_of_the_plan() -> None:
    assert (Participation().rubbish_limit, Participation().message_limit) == (100, 1000)
    assert (plan().rubbish_limit, plan().message_limit) == (100, 1000)


# ---- names that are nobody's ---------------------------------------------------------------------------------------


def held(run: Driver) -> int:
    """How many names the coordinator holds anything for."""
    c = run.coordinator
    return max(map(len, (c.members._names, c.members.known, c.members.joined, c.members._online, c._conduct._deeds,
                         c.ledger._sheets, c._reports._told)))  # fmt: skip


def test_invented_names_fill_no_memory_and_shut_no_known_device_out() -> None:
    run = Driver()
    run.start("a")
    answers = [run.arrive(f"invented-{number}", 2.0, width=9) for number in range(3000)]
    for number in range(3000):
        run.send(topics.upload(RUN, f"chunk-{number}", 1, 0), b"\xc1", 2.0)
    assert held(run) <= FEWEST_NAMES + 1  # and the server's own
    said = [note for answer in answers for note in notes(answer) if "no new one is let in" in note]
    assert said == ["more than 1000 device names have appeared: no new one is let in; does the broker let strangers "
                    "write?"]  # fmt: skip
    (refusal,) = told(answers[1500], Reject)
    assert refusal.reason == "unfit" and "too many device names" in refusal.detail
    assert run.coordinator.counts["stranger"] == 2 * 2001 + 3000
    run.presence("a", 3.0, state="lost")
    assert told(run.arrive("a", 4.0), Welcome)  # who was known is still


def test_there_is_room_for_every_device_of_a_large_run() -> None:
    assert room_for(10) == 1000 and room_for(5000) == 20_000
    members = Members(room=3)
    assert [members.meet(name) for name in "abcda"] == [True, True, True, False, True]


# ---- a whole run beside one that sends nothing else ----------------------------------------------------------------


class Silent:
    """A display that shows nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *told: None


def head(round: int = 0, seq: int = 0) -> dict:
    return {"run": PLAN.name, "round": round, "device": "evil", "seq": seq}


def chunks(round: int, upload: Arrays | bytes) -> list[tuple[str, Header]]:
    body = upload if isinstance(upload, bytes) else encode_arrays(upload)
    made = split(body, 10**4, run=PLAN.name, round=round, device="evil", seq=lambda: 9)
    return [(topics.upload(PLAN.run, "evil", round, c.index), c) for c in made]


def nothing_but(kind: str, round: int) -> list[tuple[str, Header | bytes]]:
    """What it sends in a round."""
    good = np.zeros((20, HYPER.latent_dim), np.float32)
    match kind:
        case "noise":
            return [(topics.upload(PLAN.run, "evil", round, 0), bytes([n % 256]) * 99) for n in range(300)]
        case "noise on every topic":
            own = [topics.join(PLAN.run, "evil"), topics.telemetry(PLAN.run, "evil"), topics.presence(PLAN.run, "evil")]
            return [(topic, b"\xff" * 9) for topic in own for _ in range(100)]
        case "a wrong shape":
            return [*chunks(round, {"latents": np.zeros((5, 9), np.float32)})]
        case "too many codes":
            return [*chunks(round, {"latents": np.zeros((21, HYPER.latent_dim), np.float32)})]
        case "NaN":
            return [*chunks(round, {"latents": np.where(np.arange(60).reshape(20, 3) == 7, np.nan, good)})]
        case "norms":
            return [*chunks(round, {"latents": good + np.float32(1e30)})]
        case "no arrays":
            return [*chunks(round, b"\xc0")]
        case "reports":
            report = Telemetry(**head(round, 1), outcome="idle", spent_s={}, tallies=(), evaluations=(), ignored={},
                               state_sha256="")  # fmt: skip
            return [(topics.telemetry(PLAN.run, "evil"), report)] * 300
    joins = [Join(**head(0, n), instance="0e0e0e0e", samples=RECORDS, input_dim=WIDTH) for n in range(2000)]
    return [(topics.join(PLAN.run, "evil"), join) for join in joins]


async def sends(federation: Federation, kind: str) -> None:
    """Join as a device does, and send rubbish as soon as a round opens."""
    presence = Presence(**head(), state="online", instance="0e0e0e0e")
    join = Join(**head(), instance="0e0e0e0e", samples=RECORDS, input_dim=WIDTH)
    await federation.broker.heard.wait()
    async with federation.broker.connect(Settings("evil-0e0e0e0e")) as transport:
        await transport.subscribe(topics.round_state(PLAN.run))
        await transport.publish(topics.presence(PLAN.run, "evil"), encode(presence), retain=True)
        await transport.publish(topics.join(PLAN.run, "evil"), encode(join))
        opened: set[int] = set()
        async for message in transport.messages():
            state = decode(message.payload, RoundState)
            if state.state == "ended":
                break
            if state.state == "open" and state.round not in opened:
                opened.add(state.round)
                await _pour(transport, nothing_but(kind, state.round))
            transport.acknowledge(message)
        left = Presence(**head(), state="left", instance="0e0e0e0e")
        await transport.publish(topics.presence(PLAN.run, "evil"), encode(left), retain=True)


async def _pour(transport: Transport, sent: list[tuple[str, Header | bytes]]) -> None:
    for number, (topic, message) in enumerate(sent):
        await transport.publish(topic, message if isinstance(message, bytes) else encode(message))
        if number % 50 == 0:
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def honest() -> dict[str, bytes]:
    """The models of the four devices when nobody sends rubbish."""

    async def run() -> dict[str, bytes]:
        _, states = await Federation().run()
        return {device: state.parameters.tobytes() for device, state in states.items()}

    return asyncio.run(run())


EXCLUDED = {"noise": "more than 100 messages of no use", "noise on every topic": "more than 100 messages of no use",
            "reports": "more than 100 messages of no use", "joins": "more than 1,000 messages"}  # fmt: skip
REFUSED = {"a wrong shape": "must be float32 (L, 3)", "too many codes": "21 codes where 1 to 20 belong", "NaN": "NaN",
           "norms": "where 1e+06 is the limit", "no arrays": "not a valid"}  # fmt: skip


@pytest.mark.parametrize("kind", [*EXCLUDED, *REFUSED])
async def test_a_run_beside_a_device_that_sends_rubbish(kind: str, tmp_path: Path, honest: dict[str, bytes]) -> None:
    run = replace(PLAN, devices=5, minimum_devices=5, deadline_s=500.0)
    federation = Federation(run)
    with StudyStore.create(tmp_path) as store:
        journal = Journal(store, store.begin_run(run, 5, "rubbish"), Silent())
        federation.server = Server(run, federation.method, federation.broker.connect, federation.clock, journal,
                                   into(federation.pool))  # fmt: skip
        pouring = asyncio.ensure_future(sends(federation, kind))
        try:
            outcome, states = await federation.run()
        finally:
            pouring.cancel()
            with suppress(asyncio.CancelledError):
                await pouring
        assert outcome.completed
        assert {device: state.parameters.tobytes() for device, state in states.items()} == honest
        fates = store.rows("SELECT round, fate FROM participants WHERE device = 'evil' ORDER BY round")
        assert fates == [(round, "rejected") for round in range(1, 4)]
        others = store.rows("SELECT DISTINCT fate FROM participants WHERE device <> 'evil'")
        assert others == [("accepted",)]
        events = store.rows("SELECT kind, detail, count FROM events WHERE device = 'evil'")
        by_kind = Counter(kind for kind, _, _ in events)
        refusals = [text for (text,) in store.rows("SELECT detail FROM events WHERE kind = 'note'") if "evil" in text]
        if kind in EXCLUDED:
            assert by_kind["excluded"] >= 1 and by_kind["unread"] >= 1
            assert all(EXCLUDED[kind] in detail for what, detail, _ in events if what == "excluded")
        else:
            assert by_kind["excluded"] == 0
            assert sum(REFUSED[kind] in text for text in refusals) == 3, refusals
