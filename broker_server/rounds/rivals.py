"""Another server of the same run name on the same broker: it is told apart from a dead one, and one of the two ends.

All servers of a run's name write one retained topic and share one client id, so that two of them at once would throw
each other off for ever. Whether a server that left an announcement behind is alive, no retained message can say: it is
asked for a sign of life (`Probe`), which it gives by saying its last announcement again, to servers alone; also one
whose run has ended, for as long as devices may still need it. A dead one locks nobody out.

A server that starts asks before anything else, and gives way to whoever answers. Two that began at one moment have both
heard nobody; each finds the announcement of the other in place of its own when it is thrown off, and one gives way. Of
two that go on with copies of one study, the one of the earlier life ends, without a word to devices, which are the
other's; of the same life, the one that finds the other's announcement; it may be both.
"""

from broker_server.plan import RunPlan
from edge_client.clock import Clock, within
from edge_client.errors import ConfigError, ConnectionLost, ProtocolError
from edge_client.protocol import topics
from edge_client.protocol.codec import decode, encode
from edge_client.protocol.lives import Life, life_in
from edge_client.protocol.messages import SERVER, Presence, Probe, RoundState
from edge_client.transport.base import Connect, Settings, Transport

ANSWER_S = 5.0
"""How long a server that is alive may take to answer, however busy its machine."""


def filters(run: str) -> tuple[str, str]:
    """Return the topics on which servers of a run's name hear of each other."""
    return topics.round_state(run), topics.down(run, SERVER, "probe")


async def make_sure_of_being_alone(plan: RunPlan, connect: Connect, clock: Clock, where: str) -> None:
    """Return if no server of this run's name is alive on the broker, `where` in words; raises `ConfigError` if one is.

    Asks under a name of its own, so that nobody is thrown off for it.
    """
    search = _Search(plan)
    try:
        async with connect(Settings(f"{SERVER}-{plan.run}-{plan.instance}")) as transport:
            await within(clock, ANSWER_S, search.run(transport))
    except ConnectionLost:
        return  # whoever begins now is told, and tries again
    if search.found is not None:
        raise ConfigError(gives_way(plan, search.found, f"on {where}"))


def gives_way(plan: RunPlan, other: RoundState, where: str) -> str:
    """Say that another server has the run's name, and the mend."""
    run, theirs = plan.run, life_in(other.run, plan.run)
    if theirs is not None and theirs.incarnation == plan.incarnation:
        return (
            f"run {run!r}: another server goes on with it {where}, from this study or a copy of it; stop one of the two"
        )
    if other.state == "ended":
        return (
            f"run {run!r}: the server of the run before it is still ending {where}, as devices take in what it sent; "
            "try again in a moment, or give this one another --run"
        )
    stands = "waits for devices" if other.state == "waiting" else f"is in round {other.round}"
    return (
        f"run {run!r}: another server coordinates it {where} and {stands}; give this one another --run, or stop the "
        "other one first"
    )


class _Search:
    """Listens for another server of a run's name. `found` is what it says."""

    def __init__(self, plan: RunPlan) -> None:
        self._run, self._life = plan.run, Life(plan.incarnation, plan.life)
        self._probe = encode(Probe(run=plan.name, device=SERVER, seq=0, instance=plan.instance))
        self.found: RoundState | None = None

    async def run(self, transport: Transport) -> None:
        """Return when another server has shown itself, or when none can be there: what the broker keeps comes before
        our own question comes back, and one that is alive has its run's state there; if that has ended, also the
        presence of a device that it waits for."""
        states, probes = filters(self._run)
        presences, signs = topics.presence(self._run, "+"), topics.sign_of_life(self._run)
        await transport.subscribe(states, presences, probes, signs)
        await transport.publish(probes, self._probe)
        state: RoundState | None = None
        devices = False
        async for message in transport.messages():
            transport.acknowledge(message)
            if message.topic in (states, signs):
                other = self._of_another(message.payload, message.retained)
                if other is not None and not message.retained:
                    self.found = other
                    return
                state = other or state
            elif message.topic == probes:
                if message.payload == self._probe and (state is None or (state.state == "ended" and not devices)):
                    return
            else:
                devices |= message.retained and _may_be_waited_for(message.payload)

    def _of_another(self, payload: bytes, retained: bool) -> RoundState | None:
        """Return a state, unless the broker has kept it from an earlier life of this run, which is over."""
        try:
            state = decode(payload, RoundState)
        except ProtocolError:
            return None
        life = life_in(state.run, self._run)
        return None if life is None or (retained and self._life.goes_on_from(life)) else state


def _may_be_waited_for(payload: bytes) -> bool:
    """Whether this presence is of a device that is there, or was cut off."""
    try:
        return decode(payload, Presence).state in ("online", "lost")
    except ProtocolError:
        return False


def yields(plan: RunPlan, round: int, other: RoundState) -> bool:
    """Whether a server that has come to `round` has to give way to what another announces: to a later life of its own
    run, or a second one in the same, to a run that is further, and of two that have come as far to the one of the
    smaller incarnation."""
    ours, theirs = Life(plan.incarnation, plan.life), life_in(other.run, plan.run)
    if theirs is None:
        return False
    if theirs.incarnation == ours.incarnation:
        return theirs == ours or theirs.goes_on_from(ours)
    if other.state == "ended":
        return False
    return (-other.round, theirs.incarnation) < (-round, ours.incarnation)
