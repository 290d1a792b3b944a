"""Who may connect, publish and subscribe: frozen policies that the core asks.

Topic patterns are topic filters in which `%u` stands for the user name and `%c` for the client id, as in
mosquitto's ACL files.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broker_server.broker.packets import MalformedPacket
from broker_server.broker.topics import check_filter, covers
from edge_client.errors import ConfigError

# The cost is paid in the broker's own loop, so it is set to about 10 ms: enough for long random device passwords.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**12, 8, 1


@dataclass(frozen=True, slots=True)
class Identity:
    """A client that was let in. `user` is None unless it was verified."""

    client_id: str
    user: str | None = None


class Authentication(Protocol):
    def identify(
        self, client_id: str, user: str | None, password: bytes | None, certified: str | None = None
    ) -> Identity | None:
        """Return who this is, or None to refuse with return code 4. `certified` is the common name of the client's
        certificate, where the face has verified one."""
        ...


class Authorisation(Protocol):
    def may_publish(self, who: Identity, topic: str) -> bool: ...

    def may_subscribe(self, who: Identity, filter_: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Everybody may connect; a user name without proof is not taken for one."""

    def identify(
        self, client_id: str, user: str | None, password: bytes | None, certified: str | None = None
    ) -> Identity | None:
        return Identity(client_id)


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """A client is who its certificate says, whatever user name it gives, as with mosquitto's
    `use_identity_as_username`; without a name it is refused."""

    def identify(
        self, client_id: str, user: str | None, password: bytes | None, certified: str | None = None
    ) -> Identity | None:
        return Identity(client_id, certified) if certified else None


@dataclass(frozen=True, slots=True)
class PasswordTable:
    """User name -> `hash_password` of the password.

    Raises:
        ConfigError: a value is not a result of `hash_password`.
    """

    hashes: Mapping[str, str]

    def __post_init__(self) -> None:
        for stored in self.hashes.values():
            _parse(stored)

    def identify(
        self, client_id: str, user: str | None, password: bytes | None, certified: str | None = None
    ) -> Identity | None:
        if user is None or password is None:
            return None
        # An unknown name costs the same time as a wrong password, so that names cannot be guessed by the clock.
        known = verify_password(password, self.hashes.get(user, _NOBODY))
        return Identity(client_id, user) if known and user in self.hashes else None


@dataclass(frozen=True, slots=True)
class Everything:
    """Every client may use every topic."""

    def may_publish(self, who: Identity, topic: str) -> bool:
        return True

    def may_subscribe(self, who: Identity, filter_: str) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What no pattern allows is denied.

    Args:
        read: patterns every client may subscribe to, or to any narrower filter.
        write: patterns every client may publish to.
        trusted: user name -> patterns that this user may read and write besides.

    Raises:
        ConfigError: a pattern is not a topic filter.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    trusted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern in (*self.read, *self.write, *(p for patterns in self.trusted.values() for p in patterns)):
            try:
                check_filter(pattern)
            except MalformedPacket as error:
                raise ConfigError(f"topic pattern {pattern!r}: {error}") from error

    def may_publish(self, who: Identity, topic: str) -> bool:
        return self._allowed(self.write, who, topic)

    def may_subscribe(self, who: Identity, filter_: str) -> bool:
        return self._allowed(self.read, who, filter_)

    def _allowed(self, patterns: tuple[str, ...], who: Identity, filter_: str) -> bool:
        if who.user is not None and any(covers(pattern, filter_) for pattern in self.trusted.get(who.user, ())):
            return True
        return any(covers(filled, filter_) for pattern in patterns if (filled := _fill(pattern, who)) is not None)


def gca_rules(run: str = "+") -> TopicRules:
    """The rules of this project's topics: a device's user name is its device id, the server's is `server`."""
    base = f"gca/v1/{run}"
    return TopicRules(
        read=(f"{base}/round", f"{base}/bc/#", f"{base}/dn/%u/#", f"{base}/pres/%u"),
        write=(f"{base}/pres/%u", f"{base}/join/%u", f"{base}/met/%u", f"{base}/up/%u/#"),
        trusted={"server": ("gca/v1/#",)},
    )


def hash_password(password: bytes, salt: bytes | None = None) -> str:
    """Return `scrypt$N$r$p$salt$key`, salt and key in hex; a fresh random salt unless one is given."""
    salt = secrets.token_bytes(16) if salt is None else salt
    key = hashlib.scrypt(password, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P, dklen=32)
    return f"scrypt${_SCRYPT_N}${_SCRYPT_R}${_SCRYPT_P}${salt.hex()}${key.hex()}"


def verify_password(password: bytes, stored: str) -> bool:
    """Compare in constant time with the result of `hash_password`.

    Raises:
        ConfigError: `stored` is not such a result.
    """
    n, r, p, salt, wanted = _parse(stored)
    return hmac.compare_digest(hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, dklen=len(wanted)), wanted)


def _parse(stored: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        scheme, n, r, p, salt, key = stored.split("$")
        if scheme != "scrypt":
            raise ValueError(scheme)
        return int(n), int(r), int(p), bytes.fromhex(salt), bytes.fromhex(key)
    except ValueError as error:
        raise ConfigError("stored password is not scrypt$N$r$p$salt$key; make it with hash_password") from error


def _fill(pattern: str, who: Identity) -> str | None:
    """Put the names in; None if one is missing, or holds a sign that would give the pattern another meaning."""
    for mark, name in (("%u", who.user), ("%c", who.client_id)):
        if mark in pattern:
            if not name or any(sign in name for sign in "+#/%"):
                return None
            pattern = pattern.replace(mark, name)
    return pattern


_NOBODY = hash_password(b"", salt=bytes(16))
