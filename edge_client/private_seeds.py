"""Random streams that the server must not be able to repeat. The study's seed will not do: the server draws it."""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.seeds import SHARED, digest

SECRET_BYTES = (16, 64)
"""Shortest secret that is worth the name, and the longest that BLAKE2b takes as a key."""


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a device keeps from the server: `own` is its alone, `shared` (None: nobody gave one) common to all devices
    of a federation. `repeatable` (None: there is none) takes the place of the private seed in a study that is to be
    repeated."""

    own: bytes
    shared: bytes | None = None
    repeatable: int | None = None

    @property
    def seed(self) -> int:
        """The seed of the device's choices among its records, in place of the run's, from which the server could tell
        the record behind each code."""
        if self.repeatable is not None:
            return self.repeatable
        return int.from_bytes(blake2b(b"seed", key=self.own, digest_size=16).digest(), "little")

    def of_run(self, run: str, device: str) -> "Secrets":
        """Return secrets that serve this run and, the own one, this device alone.

        Two runs that drew the same noise would give it away: the difference of their uploads has none. `run` is
        NAME.INCARNATION without the life of its server, because an upload that one life called for may reach the next,
        and because devices that meet different lives in one round have to turn their codes alike. What is repeatable
        stays as it is: it follows from the study's seed and the device, and an incarnation is drawn by chance.
        """
        if self.repeatable is not None:
            return self
        shared = None if self.shared is None else _derived(self.shared, run, SHARED)
        return Secrets(_derived(self.own, run, device), shared)


def _derived(secret: bytes, run: str, device: str) -> bytes:
    return blake2b(f"{run}|{device}".encode(), key=secret, digest_size=32).digest()


def emulated(seed: int, device: str) -> Secrets:
    """Return secrets that can be repeated, for devices emulated on one machine. Whoever has the seed has them, too:
    they stand for those of real devices, and protect nothing."""
    own, shared = (digest(seed, "secret", 0, who, size=32).to_bytes(32, "little") for who in (device, SHARED))
    return Secrets(own, shared, seed)


def read_secret(path: Path) -> bytes:
    """Return the secret in a file; raises `EnvironmentFault` if it cannot be read, `ConfigError` if it is none."""
    least, most = SECRET_BYTES
    try:
        with path.open("rb") as file:
            secret = file.read(most + 1)
    except OSError as error:
        raise EnvironmentFault(f"{path}: {error.strerror}; make it with: head -c 32 /dev/urandom > {path}") from None
    if not least <= len(secret) <= most:
        size = f"more than {most}" if len(secret) > most else len(secret)
        raise ConfigError(f"{path}: a secret of {size} bytes; use {least} to {most} random ones")
    return secret


def private_stream(secret: bytes, purpose: str, round: int) -> np.random.Generator:
    """Return the generator of this key; without the secret it cannot be told from any other."""
    key = blake2b(f"{purpose}|{round}".encode(), key=secret, digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
