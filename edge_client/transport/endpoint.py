"""Where a broker is, and how it is known: an address as a person writes it."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from edge_client.errors import ConfigError


@dataclass(frozen=True)
class Endpoint:
    """A broker's address. The password never shows in a repr, a log or a study.

    `certified_as` is the name its certificate must bear if that is not `host`: a device behind an emulated link
    connects to the link on this machine, but it is the broker that answers. `cert_file` and `key_file` are this
    client's own, for a broker that asks who it is.
    """

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certified_as: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


def endpoint(url: str, *, username: str | None = None, password: str | None = None,
             ca_file: str | None = None, cert_file: str | None = None,
             key_file: str | None = None) -> Endpoint:  # fmt: skip
    """Parse `mqtt://host[:1883]` or `mqtts://host[:8883]`; raises `ConfigError` for anything else, and for files of TLS
    that do not go together."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}" if "@" in url else url  # what stands before an @ may be secret
    mend = f"write mqtt://HOST:PORT or mqtts://HOST:PORT, got {shown}"
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path not in ("", "/"):
        raise ConfigError(f"broker address: {mend}")
    if parts.password:
        raise ConfigError("broker address: a password does not belong into an address; set GCA_PASSWORD instead")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ConfigError(f"broker address: {parts.hostname[:80]!r} cannot be a host name; {mend[:200]}") from None
    try:
        port = (8883 if parts.scheme == "mqtts" else 1883) if parts.port is None else parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(f"broker address: the port is not a number from 1 to 65535; {mend}")
    if (cert_file is None) != (key_file is None):
        raise ConfigError("--cert and --key: give both, the certificate of this client and its key")
    if parts.scheme == "mqtt" and (option := "--ca-file" if ca_file else "--cert" if cert_file else ""):
        raise ConfigError(f"{option} means nothing to mqtt://, which is not encrypted; write mqtts://")
    user = unquote(parts.username) if parts.username else username
    return Endpoint(parts.hostname, port, parts.scheme == "mqtts", user, password, ca_file, None, cert_file, key_file)
