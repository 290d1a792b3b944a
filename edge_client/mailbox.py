"""What a device knows from the server, sans-io: messages go in, facts come out.

Stale, foreign, duplicate and malformed messages are counted here and change nothing. The session (`session.py`)
feeds it from a transport; the property tests feed it reordered, repeated and broken messages.
"""

from collections import Counter

from edge_client.errors import ConfigError, ProtocolError
from edge_client.protocol import topics
from edge_client.protocol.chunks import Reassembly
from edge_client.protocol.codec import MAX_BODY, Arrays, decode, decode_arrays, payload_bytes
from edge_client.protocol.messages import Accept, Chunk, Header, Probe, Reject, RoundState, Welcome
from edge_client.protocol.tally import TallySheet


class Mailbox:
    """The server's last word on everything the device asks about.

    `welcome` and `round` are the newest of their kind; `verdicts[r]` is the fate of the upload of round r, which is
    final; `ignored` counts what was dropped, by reason.
    """

    def __init__(self, run: str, device: str, instance: str, tally: TallySheet) -> None:
        self.run, self.device, self.instance = run, device, instance
        self.tally = tally
        self.welcome: Welcome | None = None
        self.round: RoundState | None = None
        self.verdicts: dict[int, Accept | Reject] = {}
        self.refusal: Reject | None = None
        self.ignored: Counter[str] = Counter()
        self._wanted = 0
        self._body: Reassembly | None = None
        self._seen = -1
        self._early: tuple[RoundState, bytes] | None = None  # came before the welcome that tells whose it is

    def expect_broadcast(self, round: int) -> None:
        """Collect the broadcast of this round from now on and forget an earlier one."""
        self._wanted, self._body = round, Reassembly(MAX_BODY)
        self.verdicts = {r: verdict for r, verdict in self.verdicts.items() if r >= round}

    @property
    def broadcast_complete(self) -> bool:
        return self._body is not None and self._body.complete

    def broadcast(self) -> Arrays | None:
        """Return the expected broadcast once it is whole; `ProtocolError` if its bytes do not fit its digest."""
        return decode_arrays(self._body.body()) if self._body and self._body.complete else None

    def take(self, topic: str, payload: bytes) -> Header | None:
        """Use one message; return it if it told something new, else None."""
        try:
            message = decode(payload, topics.parse(topic, self.run).kind)
        except ProtocolError:
            self._ignore("malformed", payload)
            return None
        if isinstance(message, RoundState) and self.welcome is None:
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
                if self.welcome is not None and message.run != self.welcome.run:
                    raise ConfigError(
                        f"device {self.device}: another server has taken over run {self.run!r}; "
                        "a run needs one server: give the second one another --run"
                    )
                if self.welcome is not None and message.seq <= self.welcome.seq:
                    return "stale"
                self.welcome = message
            case RoundState():
                if message.seq <= self._seen:
                    return "stale"
                self._seen, self.round = message.seq, message
            case Reject() if message.reason in ("duplicate", "unfit"):
                self.refusal = message
            case Accept() | Reject():
                self.verdicts.setdefault(message.round, message)
            case Chunk():
                return self._collect(message)
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
            arrays = self.broadcast()
        except ProtocolError:
            return 0
        return payload_bytes(arrays) if arrays is not None else 0

    def _use_early(self, welcome: Welcome) -> None:
        """Take in the round state that came before the welcome, if it opens a round for this device or ends the run."""
        if self._early is None:
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
