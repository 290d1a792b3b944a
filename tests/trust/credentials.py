"""Two ways to prove a name to a broker, passwords and certificates, behind one face for the tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from brokers import RunningBroker, open_broker

from edge_client.transport.base import Connect
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector
from sim.certificates import Authority

NAMES = ("server", "a", "b", "mallory")
WAYS = ("password", "certificate")


@dataclass(frozen=True)
class Guarded:
    """A broker with this project's rules in force, on which `NAMES` are known."""

    broker: RunningBroker
    certs: Path | None

    def connect_as(self, name: str, *, user: str | None = None) -> Connect:
        """Return how `name` connects with its own credentials, and with another's user name if `user` is given."""
        if self.certs is None:
            return connector(endpoint(self.broker.url, username=user or name, password=f"password of {name}"))
        ca, mine = str(self.certs / "ca.crt"), self.certs / "clients" / name
        where = endpoint(self.broker.url, username=user, ca_file=ca, cert_file=f"{mine}.crt", key_file=f"{mine}.key")
        return connector(where)


@asynccontextmanager
async def guarded(kind: str, way: str, certs: Path) -> AsyncIterator[Guarded]:
    """Open a broker of this kind on which names are proved this way."""
    by_password = way == "password"
    users = {name: f"password of {name}" for name in NAMES} if by_password else None
    async with open_broker(kind, users=users, rules=True, certs=None if by_password else certs) as broker:
        yield Guarded(broker, None if by_password else certs)


def make_certificates(folder: Path) -> Path:
    """Make a CA with a certificate for localhost (by name only), one for each of `NAMES` and an expired
    one."""
    authority = Authority(folder)
    authority.host(["localhost"])
    for name in NAMES:
        authority.client(name)
    authority.client("expired", days=-1)
    return folder
