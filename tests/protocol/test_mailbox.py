"""What a device believes: whatever arrives, in whatever order, only the documented `ConfigError` may come out."""

import random
from itertools import count

import msgspec
import numpy as np
import pytest

from edge_client.conversation.mailbox import Mailbox
from edge_client.errors import ConfigError
from edge_client.hyperparameters import Hyperparameters
from edge_client.protocol import topics
from edge_client.protocol.chunks import split
from edge_client.protocol.codec import encode, encode_arrays
from edge_client.protocol.lives import Life, life_in
from edge_client.protocol.messages import (
    SERVER,
    Accept,
    Chunk,
    Header,
    Join,
    Reject,
    RoundState,
    Standing,
    Tally,
    Welcome,
)
from edge_client.protocol.tally import TallySheet

RUN, OURS, OTHER = "magic", "magic.5f0c21aa", "magic.00000000"
DEVICE, INSTANCE = "device-03", "00ff00ff"
CENTROIDS = np.arange(12, dtype=np.float32).reshape(3, 4)
BODY = encode_arrays({"centroids": CENTROIDS})


class Sender:
    """A server's mouth: numbers its messages and knows their topics."""

    def __init__(self, run: str = OURS) -> None:
        self.run, self._seq = run, count(1)

    def head(self, round: int) -> dict[str, object]:
        return {"run": self.run, "round": round, "device": SERVER, "seq": next(self._seq)}

    def welcome(self, round: int = 0, instance: str = INSTANCE) -> tuple[str, Welcome]:
        message = Welcome(
            **self.head(round), instance=instance, method="gca", seed=1, rounds=3, hyper=Hyperparameters(),
            standing=Standing(0, "nothing"),
        )  # fmt: skip
        return topics.down(RUN, DEVICE, "welcome"), message

    def state(self, state: str, round: int) -> tuple[str, RoundState]:
        return topics.round_state(RUN), RoundState(**self.head(round), state=state)

    def accept(self, round: int) -> tuple[str, Accept]:
        return topics.down(RUN, DEVICE, "accept"), Accept(**self.head(round))

    def reject(self, round: int, reason: str, instance: str = "") -> tuple[str, Reject]:
        return topics.down(RUN, DEVICE, "reject"), Reject(
            **self.head(round), reason=reason, detail="told", instance=instance
        )

    def broadcast(self, round: int, size: int = 40) -> list[tuple[str, Chunk]]:
        seq = self._seq.__next__
        chunks = split(BODY, size, run=self.run, round=round, device=SERVER, seq=seq)
        return [(topics.broadcast(RUN, round, c.index), c) for c in chunks]


@pytest.fixture
def server() -> Sender:
    return Sender()


@pytest.fixture
def box() -> Mailbox:
    return Mailbox(RUN, DEVICE, INSTANCE, TallySheet())


def give(box: Mailbox, *sent: tuple[str, Header]) -> list[Header | None]:
    return [box.take(topic, encode(message)) for topic, message in sent]


def size(*sent: tuple[str, Header]) -> int:
    return sum(len(encode(message)) for _, message in sent)


def test_a_round_as_it_should_be(box: Mailbox, server: Sender) -> None:
    box.expect_broadcast(1)
    told = [server.welcome(), server.state("open", 1), server.accept(1), server.state("closed", 1)]
    chunks = server.broadcast(1)
    assert len(chunks) > 2
    assert give(box, *told, *chunks) == [message for _, message in [*told, *chunks]]
    assert box.welcome == told[0][1] and box.round == told[3][1] and box.verdict == told[2][1]
    arrays = box.broadcast()
    assert arrays is not None and arrays.keys() == {"centroids"}
    np.testing.assert_array_equal(arrays["centroids"], CENTROIDS)
    assert not box.ignored
    assert box.tally.drain() == (
        Tally(direction="down", kind="broadcast", messages=len(chunks), payload_bytes=48, message_bytes=size(*chunks)),
        Tally(direction="down", kind="control", messages=4, message_bytes=size(*told)),
    )


def test_chunks_in_reverse_and_twice_give_the_same_broadcast(box: Mailbox, server: Sender) -> None:
    give(box, server.welcome())
    box.expect_broadcast(1)
    chunks = server.broadcast(1)
    give(box, *reversed(chunks), *chunks)
    arrays = box.broadcast()
    assert arrays is not None
    np.testing.assert_array_equal(arrays["centroids"], CENTROIDS)
    assert box.ignored == {"duplicate": len(chunks)}
    by_kind = {t.kind: t for t in box.tally.drain()}
    assert by_kind["broadcast"].payload_bytes == 48 and by_kind["broadcast"].message_bytes == size(*chunks)
    assert by_kind["ignored"].message_bytes == size(*chunks)


def test_what_is_late_or_said_twice_is_stale(box: Mailbox, server: Sender) -> None:
    welcome, opened, closed = server.welcome(), server.state("open", 1), server.state("closed", 1)
    give(box, welcome, closed)
    assert give(box, opened, closed, welcome) == [None, None, None]
    assert box.round == closed[1]
    assert give(box, *server.broadcast(1)) == [None] * len(server.broadcast(1))  # none was expected
    box.expect_broadcast(2)
    give(box, *server.broadcast(1))
    assert box.ignored == {"stale": 3 + 2 * len(server.broadcast(1))} and not box.broadcast_complete


def test_another_servers_words_are_foreign(box: Mailbox, server: Sender) -> None:
    other = Sender(OTHER)
    give(box, server.welcome())
    box.expect_broadcast(1)
    words = [other.state("ended", 9), other.accept(1), other.reject(1, "late"), *other.broadcast(1),
             server.welcome(instance="11111111"), server.reject(0, "duplicate", "11111111")]  # fmt: skip
    assert give(box, *words) == [None] * len(words)
    assert box.ignored == {"foreign": len(words)}
    assert box.round is None and box.verdict is None and box.refusal is None and not box.broadcast_complete
    (control, ignored) = box.tally.drain()
    assert control.messages == 1
    assert (ignored.kind, ignored.messages, ignored.message_bytes) == ("ignored", len(words), size(*words))


def test_before_the_welcome_everything_but_the_round_state_is_foreign(box: Mailbox, server: Sender) -> None:
    box.expect_broadcast(1)
    words = [server.accept(1), *server.broadcast(1)]
    give(box, *words)
    assert box.ignored == {"foreign": len(words)}
    refusal = server.reject(0, "duplicate", INSTANCE)
    give(box, refusal)
    assert box.refusal == refusal[1]  # it names this very process


@pytest.mark.parametrize(
    ("early", "taken", "why"),
    [(("open", 2), True, None), (("ended", 1), True, None), (("open", 1), False, "stale"),
     (("waiting", 0), False, "stale")],
    ids=str,
)  # fmt: skip
def test_a_round_state_before_the_welcome_waits_for_it(
    box: Mailbox, server: Sender, early: tuple[str, int], taken: bool, why: str | None
) -> None:
    state = server.state(*early)
    assert give(box, state) == [None] and box.round is None
    give(box, server.welcome(round=1))
    assert (box.round == state[1]) == taken
    assert box.ignored == ({why: 1} if why else {})


def test_an_earlier_servers_retained_state_is_dropped_with_the_welcome(box: Mailbox, server: Sender) -> None:
    give(box, Sender(OTHER).state("ended", 3), server.welcome())
    assert box.round is None and box.ignored == {"foreign": 1}


def test_the_first_verdict_on_an_upload_is_final(box: Mailbox, server: Sender) -> None:
    box.expect_broadcast(1)
    give(box, server.welcome(), server.accept(1), server.reject(1, "late"))
    assert isinstance(box.verdict, Accept)
    box.expect_broadcast(2)
    assert box.verdict is None
    give(box, server.reject(2, "invalid"), server.accept(2))
    assert isinstance(box.verdict, Reject)


def test_verdicts_on_invented_rounds_fill_no_memory(box: Mailbox, server: Sender) -> None:
    """Of all that a device remembers, nothing grows with what it is sent."""
    give(box, server.welcome())
    box.expect_broadcast(1)
    give(box, *(server.accept(round) for round in range(2, 1002)), *(server.reject(10**6, "late") for _ in range(500)))
    assert box.verdict is None and box.ignored == {"stale": 1500}
    held = {name: len(value) for name, value in vars(box).items() if isinstance(value, dict)}
    assert held == {"ignored": 1}


# ---- lives of one server -------------------------------------------------------------------------------------------


def test_a_later_life_begins_its_numbers_anew_and_forgets_no_whole_broadcast(box: Mailbox, server: Sender) -> None:
    later = Sender(f"{OURS}.1")
    box.expect_broadcast(1)
    give(box, server.welcome(), server.state("open", 1), *(server.state("open", 1) for _ in range(50)),
         server.accept(1), *server.broadcast(1))  # fmt: skip
    opened, welcome = later.state("open", 1), later.welcome(round=0)
    assert give(box, opened) == [None] and box.superseded and box.round is not None and box.round.run == OURS
    give(box, welcome)
    assert (box.life, box.round, box.verdict, box.superseded) == (f"{OURS}.1", opened[1], None, False)
    assert box.broadcast_complete  # a broadcast that went out is of a round that is over
    before = dict(box.ignored)
    give(box, server.state("ended", 9), server.accept(1), server.welcome(), *server.broadcast(1))  # of the old life
    assert box.round == opened[1] and box.verdict is None and box.life == f"{OURS}.1"
    assert box.ignored["foreign"] == before.get("foreign", 0) + 2 + len(server.broadcast(1))
    assert box.ignored["stale"] == before.get("stale", 0) + 1


def test_half_a_broadcast_of_an_earlier_life_is_dropped(box: Mailbox, server: Sender) -> None:
    box.expect_broadcast(1)
    first, *rest = server.broadcast(1)
    give(box, server.welcome(), first)
    later = Sender(f"{OURS}.1")
    give(box, later.welcome(), *[(topic, msgspec.structs.replace(c, run=f"{OURS}.1")) for topic, c in rest])
    assert not box.broadcast_complete
    give(box, *later.broadcast(1))
    assert box.broadcast_complete


def test_a_life_that_is_over_cannot_come_back(box: Mailbox, server: Sender) -> None:
    give(box, Sender(f"{OURS}.2").welcome())
    give(box, Sender(f"{OURS}.1").state("open", 1), server.state("open", 1))
    assert box.ignored == {"foreign": 2}
    assert give(box, Sender(f"{OURS}.1").welcome(), server.welcome()) == [None, None]
    assert box.life == f"{OURS}.2" and not box.superseded


@pytest.mark.parametrize(
    ("name", "told"),
    [("magic.5f0c21aa", Life("5f0c21aa")), ("magic.5f0c21aa.12", Life("5f0c21aa", 12)), ("magic", None),
     ("magic.5f0c21aa.0", None), ("magic.5f0c21aa.01", None), ("magic.5f0c21aa.1234567", None),
     ("magic.5f0c21aa.", None), ("magic.5F0C21AA", None), ("other.5f0c21aa", None), ("xmagic.5f0c21aa", None),
     ("magic.5f0c21aa\n", None)],
)  # fmt: skip
def test_a_life_is_read_from_the_run_as_messages_name_it(name: str, told: Life | None) -> None:
    assert life_in(name, "magic") == told
    if told is not None:
        assert f"magic.{told}" == name


def test_a_second_server_for_the_run_is_told_in_one_line(box: Mailbox, server: Sender) -> None:
    give(box, server.welcome())
    with pytest.raises(ConfigError, match=r"device-03: another server has taken over run 'magic'.*--run"):
        give(box, Sender(OTHER).welcome())


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("gca/v1/magic/round", b""),
        ("gca/v1/magic/round", b"\xff" * 50),
        ("gca/v1/magic/round", encode(Accept(run=OURS, device=SERVER, seq=1))),
        ("gca/v1/other/round", encode(RoundState(run=OURS, device=SERVER, seq=9, state="ended"))),
        ("gca/v1/magic/bc/1/x", b"\xc0"),
        ("gca/v1/magic/dn/device-03/nothing", b"\xc0"),
        ("\0", b"\xc0"),
        ("gca/v1/magic/dn/device-03/accept", bytes(300_000)),
    ],
    ids=["empty", "noise", "another type", "another run", "no number", "no verb", "no topic", "too long"],
)
def test_garbage_is_counted_and_changes_nothing(box: Mailbox, server: Sender, topic: str, payload: bytes) -> None:
    give(box, server.welcome())
    box.tally.drain()
    assert box.take(topic, payload) is None
    assert box.ignored == {"malformed": 1} and box.round is None and box.verdict is None
    assert box.tally.drain() == (Tally(direction="down", kind="ignored", messages=1, message_bytes=len(payload)),)


def test_a_lying_chunk_is_counted_and_the_true_ones_still_serve(box: Mailbox, server: Sender) -> None:
    give(box, server.welcome())
    box.expect_broadcast(1)
    (topic, first), *rest = server.broadcast(1)
    lies = [msgspec.structs.replace(first, **lie) for lie in ({"index": 9}, {"size": 2**40}, {"data": bytes(500)})]
    give(box, *[(topic, lie) for lie in lies])
    give(box, (topic, first), *rest)
    assert box.ignored == {"malformed": 3} and box.broadcast() is not None


def test_a_broadcast_of_no_arrays_is_told_when_it_is_read(box: Mailbox, server: Sender) -> None:
    """Its digest is right, so that it is complete; its tensor bytes count for nothing."""
    give(box, server.welcome())
    box.expect_broadcast(1)
    chunk = next(split(b"no arrays", 99, run=OURS, round=1, device=SERVER, seq=lambda: 9))
    assert give(box, (topics.broadcast(RUN, 1, 0), chunk)) == [chunk]
    assert box.broadcast_complete
    assert {t.kind: t.payload_bytes for t in box.tally.drain()}["broadcast"] == 0


def test_thousands_of_shuffled_repeated_and_broken_messages_raise_nothing() -> None:
    """Every message is used or counted: none vanishes from the ledger."""
    rng = random.Random(7)
    for _ in range(40):
        ours, other, sheet = Sender(), Sender(OTHER), TallySheet()
        box = Mailbox(RUN, DEVICE, INSTANCE, sheet)
        words: list[tuple[str, Header]] = [ours.welcome(r) for r in range(3)]
        for round in range(1, 4):
            for sender in (ours, other):
                words += [sender.state("open", round), sender.accept(round), sender.reject(round, "late"),
                          sender.state("closed", round), *sender.broadcast(round)]  # fmt: skip
        words.append((topics.join(RUN, DEVICE), Join(**ours.head(0), instance=INSTANCE, samples=1, input_dim=1)))
        sent = [(topic, encode(message)) for topic, message in words + rng.choices(words, k=40)]
        for i in rng.sample(range(len(sent)), 30):
            topic, data = sent[i]
            broken = bytearray(data)
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            sent[i] = rng.choice([topic, *(t for t, _ in words)]), bytes(broken)
        rng.shuffle(sent)
        box.expect_broadcast(rng.randint(1, 3))
        usurped = 0
        for topic, data in sent:
            try:
                box.take(topic, data)
            except ConfigError:  # a flipped bit gave a welcome of another server's name
                usurped += 1
        waiting = box._early is not None
        assert sum(t.messages for t in sheet.drain()) == len(sent) - usurped - waiting
        assert (box.welcome is not None and box.welcome.run == OURS) or usurped
        assert {"foreign", "malformed", "stale"} <= box.ignored.keys()
