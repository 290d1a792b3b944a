"""What a device knows from the server, sans-io: messages go in, facts come out.

Stale, foreign, duplicate and malformed messages are counted here and change nothing. The session (`session.py`)
feeds it from a transport; the property tests feed it reordered, repeated and broken messages.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edge_client.errors import ConfigError, ProtocolError
from edge_client.protocol import topics
from edge_client.protocol.chunks import Reassembly
from edge_client.protocol.codec import MAX_BODY, Arrays, decode, decode_arrays, payload_bytes
from edge_client.protocol.lives import Life, life_in
from edge_client.protocol.messages import Accept, Chunk, Header, Probe, Reject, RoundState, Welcome
from edge_client.protocol.tally import TallySheet

TOO_LATE = "the round closed before the upload was complete"


@dataclass(frozen=True)
class Fate:
    """What became of an upload; `detail` is the server's reason."""

    outcome: Literal["completed", "rejected", "late"]
    detail: str = ""


class Mailbox:
    """The server's last word on everything the device asks about.

    `welcome` and `round` are the newest of their kind; `verdict` is the fate of the upload of the round that is
    expected, which is final in this life of the server; `ignored` counts what was dropped, by reason.
    """

    def __init__(self, run: str, device: str, instance: str, tally: TallySheet) -> None:
        self.run, self.device, self.instance = run, device, instance
        self.tally = tally
        self.welcome: Welcome | None = None
        self.round: RoundState | None = None
        self.verdict: Accept | Reject | None = None
        self.refusal: Reject | None = None
        self.ignored: Counter[str] = Counter()
        self._wanted = 0
        self._body: Reassembly | None = None
        self._counted: Arrays | None = None  # the broadcast, decoded to count its tensors
        self._seen = -1
        self._early: tuple[RoundState, bytes] | None = None  # came before the welcome that tells whose it is

    def expect_broadcast(self, round: int) -> None:
        """Collect the broadcast and the verdict of this round from now on and forget earlier ones."""
        self._wanted, self._body, self._counted, self.verdict = round, Reassembly(MAX_BODY), None, None

    @property
    def broadcast_complete(self) -> bool:
        return self._body is not None and self._body.complete

    def broadcast(self) -> Arrays | None:
        """Return the expected broadcast once it is whole; `ProtocolError` if its bytes do not fit its digest. It is
        handed over, not kept: it may be large."""
        arrays, self._counted = self._counted, None
        if arrays is None and self._body is not None and self._body.complete:
            arrays = decode_arrays(self._body.body())
        return arrays

    def take(self, topic: str, payload: bytes) -> Header | None:
        """Use one message; return it if it told something new, else None."""
        try:
            message = decode(payload, topics.parse(topic, self.run).kind)
        except ProtocolError:
            self._ignore("malformed", payload)
            return None
        if isinstance(message, RoundState) and (self.welcome is None or self._is_of_a_later_life(message)):
            self._drop_early("stale")
            self._early = message, payload
            return None
        flaw = self._use(message) if self._is_ours(message) else "foreign"
        if flaw is not None:
            self._ignore(flaw, payload)
            return None
        if isinstance(message, Welcome):
            self._use_early(message)
        if isinstance(message, Chunk):
            self.tally.count("down", "broadcast", len(payload), self._payload_if_complete())
        else:
            self.tally.count("down", "control", len(payload))
        return message

    @property
    def heard(self) -> bool:
        """Whether there is any trace of a server of this run, be it long gone."""
        return self.welcome is not None or self._early is not None

    @property
    def superseded(self) -> bool:
        """Whether the server goes on in a later life, which has not welcomed this device yet."""
        return self.welcome is not None and self._early is not None

    @property
    def life(self) -> str:
        """The run as messages name it: with the server's life once we know it."""
        return self.welcome.run if self.welcome else self.run

    def _is_of_a_later_life(self, message: Header) -> bool:
        ours, theirs = self._life(self.welcome), self._life(message)
        return ours is not None and theirs is not None and theirs.goes_on_from(ours)

    def _life(self, message: Header | None) -> Life | None:
        return None if message is None else life_in(message.run, self.run)

    def _is_ours(self, message: Header) -> bool:
        """A message counts if the server we were welcomed by sent it; what names a process, if it names this one."""
        if isinstance(message, Welcome | Probe):
            return message.instance == self.instance
        if isinstance(message, Reject) and message.instance:
            return message.instance == self.instance
        return self.welcome is not None and message.run == self.welcome.run

    def _use(self, message: Header) -> str | None:
        """Take in what a message says; return the reason if it is of no use."""
        match message:
            case Welcome():
                return self._welcomed(message)
            case RoundState():
                if message.seq <= self._seen:
                    return "stale"
                self._seen, self.round = message.seq, message
            case Reject() if message.reason in ("duplicate", "unfit"):
                self.refusal = message
            case Accept() | Reject() if message.round != self._wanted:
                return "stale"
            case Accept() | Reject():
                self.verdict = self.verdict or message
            case Chunk():
                return self._collect(message)
        return None

    def _welcomed(self, welcome: Welcome) -> str | None:
        """Take in a welcome. That of a later life begins everything anew that the server has numbered or decided."""
        if self.welcome is not None and welcome.run != self.welcome.run:
            ours, theirs = self._life(self.welcome), self._life(welcome)
            if ours is None or theirs is None or ours.incarnation != theirs.incarnation:
                raise ConfigError(
                    f"device {self.device}: another server has taken over run {self.run!r}; "
                    "a run needs one server: give the second one another --run"
                )
            if not theirs.goes_on_from(ours):
                return "stale"
            self.round, self.verdict, self._seen = None, None, -1
            if self._body is not None and not self._body.complete:
                self._body = Reassembly(MAX_BODY)
        elif self.welcome is not None and welcome.seq <= self.welcome.seq:
            return "stale"
        self.welcome = welcome
        return None

    def _collect(self, chunk: Chunk) -> str | None:
        if self._body is None or chunk.round != self._wanted:
            return "stale"
        try:
            return None if self._body.add(chunk) else "duplicate"
        except ProtocolError:
            return "malformed"

    def _payload_if_complete(self) -> int:
        try:
            self._counted = self.broadcast()
        except ProtocolError:
            return 0
        return payload_bytes(self._counted) if self._counted is not None else 0

    def _use_early(self, welcome: Welcome) -> None:
        """Take in the round state that came before the welcome, if it opens a round for this device or ends the run."""
        if self._early is None or self._is_of_a_later_life(self._early[0]):
            return
        state, payload = self._early
        if state.run != welcome.run:
            self._drop_early("foreign")
        elif state.round <= welcome.round and state.state != "ended":
            self._drop_early("stale")
        else:
            self._early, self.round, self._seen = None, state, state.seq
            self.tally.count("down", "control", len(payload))

    def _drop_early(self, reason: str) -> None:
        if self._early is not None:
            self._ignore(reason, self._early[1])
            self._early = None

    def _ignore(self, reason: str, payload: bytes) -> None:
        self.ignored[reason] += 1
        self.tally.count("down", "ignored", len(payload))

    # ---- facts --------------------------------------------------------------------------------------------------

    @property
    def end(self) -> RoundState | None:
        """What the server said about the end of the run; None before. A later life need not welcome anyone for that:
        it may be gone."""
        states = self.round, self._early[0] if self.superseded and self._early is not None else None
        return next((state for state in states if state is not None and state.state == "ended"), None)

    @property
    def ended(self) -> bool:
        return self.end is not None

    def opening(self, after: int) -> RoundState | None:
        """Return the state that opens a round beyond `after`, or that ends the run."""
        state = self.round
        return state if state is not None and state.state == "open" and state.round > after else self.end

    def standing(self, round: int) -> str | None:
        """Return what the last welcome said of what is awaited for this round."""
        standing = self.welcome.standing if self.welcome else None
        return standing.state if standing and standing.round == round else None

    def fate(self, round: int, answered: bool) -> Fate | None:
        """Return what the server said about a round's upload, or that it has moved on without it, which its states say
        once it has `answered` on this connection."""
        verdict, standing, state = self._verdict_on(round), self.standing(round), self.round
        if isinstance(verdict, Reject):
            return Fate("late" if verdict.reason == "late" else "rejected", verdict.detail)
        if verdict is not None or standing == "accepted":
            return Fate("completed")
        if standing == "rejected":
            return Fate("rejected", "the reason went down with an earlier connection")
        if standing == "closed":
            return Fate("late", TOO_LATE)
        passed = state is not None and (state.round > round or state.state == "closed") and answered
        return Fate("late", TOO_LATE) if passed or self.ended else None

    def _verdict_on(self, round: int) -> Accept | Reject | None:
        return self.verdict if self.verdict is not None and self.verdict.round == round else None

    def lacks(self, round: int, told: Welcome | None, chunks: int) -> Sequence[int] | None:
        """Return the chunks that the server lacks, as a welcome newer than `told` says; None without such a word."""
        if self.welcome is told:
            return None
        match self.standing(round):
            case "unseen":
                return range(chunks)
            case "partial" if self.welcome is not None:
                return [i for i in self.welcome.standing.missing if i < chunks]
        return None

    def passed_by(self, round: int) -> bool:
        """Whether the server is past this round, but not all of its broadcast has come: it went by while this device
        was away."""
        passed = self.round is not None and self.round.round > round
        return (passed or self.ended) and not self.broadcast_complete

    def broadcast_is_decided(self, round: int) -> bool:
        """Whether the broadcast is here, or never will be."""
        state = self.round
        nothing_follows = state is not None and (state.round, state.state, state.chunks) == (round, "closed", 0)
        return self.broadcast_complete or nothing_follows or self.standing(round) == "gone"
