"""What a person is told while no server answers: a name that was mistyped and a server that is yet to be started look
the same to a device, which waits for either."""

from collections.abc import Callable

from edge_client.clock import Clock
from edge_client.conversation.session import Session

FIRST_S = 15.0
"""A server that is there answers within a second, and within ten on the slowest of links: a few hundred bytes go up and
a thousand come down."""
AGAIN_S = 3600.0
"""Devices that were started long before their server should not fill a log with it."""


async def tell_of_silence(session: Session, clock: Clock, where: str, say: Callable[[str], None]) -> None:
    """Say that no server has answered on this broker, once and then rarely; return when one has. While there is no
    connection nothing is said: the session tells of that."""
    wait = FIRST_S
    while True:
        await clock.sleep(wait)
        if session.mail.welcome is not None:
            return
        if session.connected:
            run, wait = session.who.run, AGAIN_S
            if session.mail.heard:
                say(f"run {run!r} has been heard of on {where}, but no server of it answers: waiting for one")
            else:
                say(f"no server of run {run!r} has been heard on {where} yet: waiting for one; is the name right?")
