"""The broker without sockets and clock: events in, effects out (MQTT 3.1.1, QoS 2 granted as QoS 1).

A face tells the core what happened, with the time, and obeys the effects it gets back. The TCP face and the
in-memory face of virtual time share this file, so a session behaves the same on both. Nothing in here raises for
what a client does.
"""

from itertools import count

from broker_server.broker.access import Anonymous, Authentication, Authorisation, Everything, Identity
from broker_server.broker.counters import Counters, Tally
from broker_server.broker.effects import Close, ConnectionId, Effect, Send, Warn
from broker_server.broker.encode import encoded_size
from broker_server.broker.limits import Limits
from broker_server.broker.packets import (
    PROTOCOL_LEVEL,
    PROTOCOL_NAME,
    SUBSCRIPTION_REFUSED,
    ConnAck,
    Connect,
    ConnectCode,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from broker_server.broker.pressure import Pressure
from broker_server.broker.retained import RetainedStore
from broker_server.broker.session import Connection, Session, held_bytes
from broker_server.broker.topics import SubscriptionTree

_KEEPALIVE_FACTOR = 1.5  # section 3.1.2.10


class Broker:
    """All sessions, subscriptions and retained messages.

    Every event method takes `now` in seconds, never less than before, and returns the effects to obey in this order.
    Events for a connection that the core has closed are ignored, since the face may learn of that later.
    With `roomy`, a face takes all it is given at once and never reports with `drained`.
    """

    def __init__(
        self,
        authentication: Authentication | None = None,
        authorisation: Authorisation | None = None,
        limits: Limits | None = None,
        *,
        roomy: bool = False,
    ) -> None:
        self._authentication = authentication or Anonymous()
        self._authorisation = authorisation or Everything()
        self._limits = limits or Limits()
        self._roomy = roomy
        self._connections: dict[ConnectionId, Connection] = {}
        self._sessions: dict[str, Session] = {}
        self._subscriptions = SubscriptionTree()
        self._retained = RetainedStore(self._limits.retained_bytes)
        self._tally = Tally()
        self._wills: list[tuple[Identity, Will]] = []
        self._effects: list[Effect] = []
        self._pressure = Pressure(self._limits, self._effects)
        self._invented_ids = (f"auto-{number}" for number in count(1))

    # Events

    def opened(self, connection_id: ConnectionId, now: float, certified: str | None = None) -> list[Effect]:
        """A client has connected; its id must be new. `certified` is the name in its certificate, if it has shown one
        that the face trusts."""
        self._connections[connection_id] = Connection(connection_id, now, now, certified)
        return self._finish(now)

    def bytes_seen(self, connection_id: ConnectionId, count: int, now: float) -> None:
        """`count` bytes came in, whole packets or not: any byte is a sign of life."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.last_seen = now
            connection.traffic.bytes_received += count
            self._tally.total.bytes_received += count

    def received(self, connection_id: ConnectionId, packet: Packet, now: float) -> list[Effect]:
        """A whole packet came in."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            self._handle(connection, packet, now)
            if connection_id in self._connections:
                self._pressure.received(connection, now)
        return self._finish(now)

    def drained(self, connection_id: ConnectionId, count: int, now: float) -> list[Effect]:
        """`count` of the bytes asked for with `Send` have left for the client; 0 if it merely shows that it reads."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            if connection.unsent > connection.unsent_after_message:  # answers to its pings alone prove no reading
                connection.taken_at = now
            connection.unsent -= count
            connection.drained_at = now
            connection.traffic.bytes_sent += count
            self._tally.total.bytes_sent += count
            self._pressure.eased(connection, now)
        return self._finish(now)

    def lost(self, connection_id: ConnectionId, now: float) -> list[Effect]:
        """The connection broke without DISCONNECT."""
        return self.failed(connection_id, "lost", now)

    def failed(self, connection_id: ConnectionId, reason: str, now: float) -> list[Effect]:
        """The face cannot go on with this connection: its bytes are malformed, say."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            self._close(connection, reason, now)
        return self._finish(now)

    def tick(self, now: float, only: ConnectionId | None = None) -> list[Effect]:
        """Let time pass: keepalives, stalled subscribers, held publishers; for one connection or for all. See
        `next_deadline` and `deadline`."""
        chosen = self._connections.values() if only is None else filter(None, [self._connections.get(only)])
        for connection in list(chosen):
            reason = next((why for why, due in self._endings(connection) if now >= due), None)
            if reason is not None:
                self._close(connection, reason, now)
            else:
                self._pressure.tick(connection, now)
        return self._finish(now)

    def next_deadline(self) -> float | None:
        """Return the earliest time at which `tick` has something to do, if nothing else happens before."""
        deadlines = []
        for connection in self._connections.values():
            deadlines += [due for _, due in self._endings(connection)]
            passes = (self._pressure.pass_due(connection), self._pressure.stall_due(connection))
            deadlines += [due for due in passes if due is not None]
        return min(deadlines, default=None)

    def deadline(self, connection_id: ConnectionId) -> float | None:
        """Return when a connection ends if nothing happens on it before; None if never, or if it is gone."""
        connection = self._connections.get(connection_id)
        return min((due for _, due in self._endings(connection)), default=None) if connection else None

    def counters(self) -> Counters:
        """Return a snapshot."""
        open_sessions = [c for c in self._connections.values() if c.session is not None]
        return Counters(
            total=self._tally.total.frozen(),
            connections={c.session.who.client_id: c.traffic.frozen() for c in open_sessions if c.session is not None},
            closed=dict(self._tally.closed),
            dropped=dict(self._tally.dropped),
            sessions=len(self._sessions),
            retained=self._retained.count,
            retained_bytes=self._retained.bytes,
            backlog=sum(session.backlog for session in self._sessions.values()),
        )

    # Packets

    def _handle(self, connection: Connection, packet: Packet, now: float) -> None:
        session = connection.session
        if session is None:
            if isinstance(packet, Connect):
                self._connect(connection, packet, now)
            else:
                self._close(connection, "no connect", now)  # section 3.1
            return
        match packet:
            case Publish():
                self._publish(connection, session, packet, now)
            case PubAck():
                self._acknowledged(connection, session, packet.packet_id, now)
            case PingReq():
                self._send(connection, PingResp(), now)
            case PubRel():
                session.received_qos2.discard(packet.packet_id)
                self._send(connection, PubComp(packet.packet_id), now)
            case Subscribe():
                self._subscribe(connection, session, packet, now)
            case Unsubscribe():
                for filter_ in packet.filters:
                    session.subscriptions.pop(filter_, None)
                    self._subscriptions.remove(filter_, session.who.client_id)
                self._send(connection, UnsubAck(packet.packet_id), now)
            case Disconnect():
                connection.will = None  # section 3.14.4
                self._close(connection, "disconnect", now)
            case _:  # a second CONNECT, PUBREC and PUBCOMP for a QoS 2 we never send, or a packet only brokers send
                self._close(connection, "protocol", now)

    def _connect(self, connection: Connection, packet: Connect, now: float) -> None:
        client_id = packet.client_id
        if not client_id and packet.clean_session:
            client_id = next(name for name in self._invented_ids if name not in self._sessions)
        code, who = self._admit(packet, client_id, connection.certified)
        if who is None:
            self._send(connection, ConnAck(code), now)
            self._close(connection, f"refused {code.name.lower()}", now)
            return
        old = self._sessions.get(client_id)
        if old is not None and old.connection is not None:
            self._close(old.connection, "taken over", now)  # section 3.1.4, and its will is due
            old = self._sessions.get(client_id)
        if old is not None and packet.clean_session:
            self._forget(old)
            old = None
        session = old or Session(who, packet.clean_session, self._limits.inflight_window)
        self._sessions[client_id] = session
        session.clean, session.overflow_reported = packet.clean_session, False
        session.connection, connection.session = connection, session
        connection.keepalive, connection.will = packet.keepalive, packet.will
        self._send(connection, ConnAck(session_present=old is not None), now)
        for message in session.unacknowledged():
            self._send(connection, message, now)
        self._send_queued(connection, session, now)

    def _admit(self, packet: Connect, client_id: str, certified: str | None) -> tuple[ConnectCode, Identity | None]:
        """Return the code to answer and, if it is ACCEPTED, who this is (sections 3.1.4 and 3.2.2.3)."""
        if packet.name != PROTOCOL_NAME or packet.level != PROTOCOL_LEVEL:
            return ConnectCode.UNACCEPTABLE_PROTOCOL, None
        if not client_id:  # a session to keep needs a name to keep it under, section 3.1.3.1
            return ConnectCode.IDENTIFIER_REJECTED, None
        who = self._authentication.identify(client_id, packet.user, packet.password, certified)
        if who is None:
            return ConnectCode.BAD_CREDENTIALS, None
        old = self._sessions.get(client_id)
        if old is not None and old.who != who:  # or one user could take another one's session and its messages
            return ConnectCode.IDENTIFIER_REJECTED, None
        if old is None and len(self._sessions) >= self._limits.max_sessions:
            return ConnectCode.SERVER_UNAVAILABLE, None
        return ConnectCode.ACCEPTED, who

    def _publish(self, connection: Connection, session: Session, packet: Publish, now: float) -> None:
        connection.traffic.messages_received += 1
        self._tally.total.messages_received += 1
        if packet.qos == 2:
            repeated = packet.packet_id in session.received_qos2
            session.received_qos2.add(packet.packet_id)
            self._send(connection, PubRec(packet.packet_id), now)
            if repeated:
                return
        elif packet.qos == 1:
            self._send(connection, PubAck(packet.packet_id), now)
        # Denied messages are acknowledged all the same: 3.1.1 has no other answer than that or closing (section 3.3.5).
        self._accept(session.who, packet, connection, now)

    def _acknowledged(self, connection: Connection, session: Session, packet_id: int, now: float) -> None:
        if session.acknowledge(packet_id):
            connection.taken_at = now
            self._send_queued(connection, session, now)
            self._pressure.eased(connection, now)

    def _subscribe(self, connection: Connection, session: Session, packet: Subscribe, now: float) -> None:
        codes = []
        for filter_, asked in packet.requests:
            new = filter_ not in session.subscriptions
            if (
                filter_.startswith("$share/")  # MQTT 5; taken literally it would deliver nothing, without a word
                or not self._authorisation.may_subscribe(session.who, filter_)
                or (new and len(session.subscriptions) >= self._limits.max_subscriptions)
            ):
                codes.append(SUBSCRIPTION_REFUSED)
                continue
            codes.append(min(asked, 1))
            session.subscriptions[filter_] = codes[-1]
            self._subscriptions.add(filter_, session.who.client_id, codes[-1])
        self._send(connection, SubAck(packet.packet_id, tuple(codes)), now)
        for (filter_, _), granted in zip(packet.requests, codes, strict=True):
            if granted != SUBSCRIPTION_REFUSED:
                for kept in list(self._retained.match(filter_)):
                    self._deliver(session, _copy(kept, min(kept.qos, granted), retain=True), None, now)

    # Messages

    def _accept(self, who: Identity, message: Publish | Will, publisher: Connection | None, now: float) -> None:
        """Retain and route a message that `who` has written, if it may."""
        if message.topic.startswith("$") or not self._authorisation.may_publish(who, message.topic):  # section 4.7.2
            self._tally.dropped["publish denied"] += 1
            return
        if message.retain and not self._retained.put(_copy(message, min(message.qos, 1), retain=True)):
            self._tally.dropped["retained overflow"] += 1
            self._effects.append(Warn(f"topic {message.topic!r} not retained: retained_bytes is reached; raise it"))
        by_qos: dict[int, Publish] = {}  # one value for all receivers of a QoS
        for client_id, granted in self._subscriptions.match(message.topic).items():
            qos = min(message.qos, granted)
            routed = by_qos.get(qos)
            if routed is None:
                routed = by_qos[qos] = Publish(message.topic, message.payload, qos)
            if (session := self._sessions.get(client_id)) is not None:
                self._deliver(session, routed, publisher, now)

    def _deliver(self, session: Session, message: Publish, publisher: Connection | None, now: float) -> None:
        """Give one message to one session; `message` must have the QoS this session gets."""
        connection = session.connection
        if connection is None:
            self._keep_for_absent(session, message)
            return
        if not session.queue and connection.unsent <= connection.unsent_after_message:  # from now on it is awaited
            connection.taken_at = now
        session.enqueue(message)
        self._send_queued(connection, session, now)
        if session.backlog > self._limits.hard_bound:
            self._effects.append(Warn(f"client {session.who.client_id!r} closed: {session.backlog} bytes wait for it"))
            self._close(connection, "backlog", now)
        elif publisher is not None and publisher.id in self._connections:
            self._pressure.published(publisher, connection, now)

    def _keep_for_absent(self, session: Session, message: Publish) -> None:
        if message.qos == 0:  # may be dropped, section 3.1.2.4
            self._tally.dropped["offline qos 0"] += 1
        elif (
            len(session.queue) >= self._limits.offline_messages
            or session.queued_bytes + held_bytes(message) > self._limits.offline_bytes
        ):
            self._tally.dropped["offline overflow"] += 1
            if not session.overflow_reported:
                session.overflow_reported = True
                client_id = session.who.client_id
                self._effects.append(Warn(f"messages for absent client {client_id!r} dropped: offline queue is full"))
        else:
            session.enqueue(message)

    def _send_queued(self, connection: Connection, session: Session, now: float) -> None:
        while (message := session.next()) is not None:
            self._send(connection, message, now)

    def _send(self, connection: Connection, packet: Packet, now: float) -> None:
        size = encoded_size(packet)
        if isinstance(packet, Publish):
            connection.traffic.messages_sent += 1
            self._tally.total.messages_sent += 1
        if self._roomy:
            connection.traffic.bytes_sent += size
            self._tally.total.bytes_sent += size
        else:
            if connection.unsent == 0:
                connection.drained_at = now
            connection.unsent += size
            connection.unsent_after_message = (
                0 if isinstance(packet, Publish) else connection.unsent_after_message + size
            )
        self._effects.append(Send(connection.id, packet, size))

    # Endings

    def _endings(self, connection: Connection) -> list[tuple[str, float]]:
        """Why and when this connection ends if it goes on as it is."""
        if connection.session is None:
            return [("connect timeout", connection.opened_at + self._limits.connect_timeout)]
        endings = []
        if connection.keepalive and connection.paused_at is None:
            endings.append(("keepalive", connection.last_seen + _KEEPALIVE_FACTOR * connection.keepalive))
        if connection.unsent:
            endings.append(("stalled", connection.drained_at + self._limits.stall_timeout))
        return endings

    def _close(self, connection: Connection, reason: str, now: float) -> None:
        """Forget the connection; its session too if that was a clean one; its will is published when the event ends."""
        del self._connections[connection.id]
        self._tally.closed[reason] += 1
        self._effects.append(Close(connection.id, reason))
        self._pressure.forget(connection, now)
        session = connection.session
        if session is None:
            return
        session.connection = None
        if connection.will is not None:
            self._wills.append((session.who, connection.will))
        if session.clean:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        client_id = session.who.client_id
        for filter_ in session.subscriptions:
            self._subscriptions.remove(filter_, client_id)
        del self._sessions[client_id]

    def _finish(self, now: float) -> list[Effect]:
        """Publish the wills of this event, and of the connections that these wills end, then hand out the effects."""
        while self._wills:
            who, will = self._wills.pop(0)
            self._accept(who, will, None, now)
        effects = self._effects[:]
        self._effects.clear()  # in place: `Pressure` appends to the same list
        return effects


def _copy(message: Publish | Will, qos: int, retain: bool) -> Publish:
    return Publish(message.topic, message.payload, qos, retain)
