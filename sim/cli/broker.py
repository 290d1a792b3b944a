"""`gca broker`: the embedded broker on its own, or the configuration of a real one."""

import asyncio
import sys
from asyncio import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ssl import SSLContext

    from broker_server.broker.access import PasswordTable

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PASSWORD_FILE_LIMIT = 16 * 1024 * 1024
"""Bytes; a line has about 130."""


def broker(
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 for all")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=1, max=65535)] = 1883,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the broker's certificate")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key")] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="who may connect, and to their own topics only: a line NAME:HASH for each")
    ] = None,
    hash_password: Annotated[
        str | None, typer.Option(metavar="NAME", help="ask for a password, print its NAME:HASH and exit")
    ] = None,
    acl_file: Annotated[
        Path | None, typer.Option(help="in mosquitto's configuration: where the output of --print-acl is")
    ] = None,
    print_mosquitto_conf: Annotated[
        bool, typer.Option("--print-mosquitto-conf", help="print a configuration for mosquitto and exit")
    ] = False,
    print_acl: Annotated[bool, typer.Option("--print-acl", help="print access rules for mosquitto and exit")] = False,
) -> None:
    """Run the embedded MQTT broker, or print what mosquitto needs.

    Example: gca broker --host 0.0.0.0

    Example: gca broker --hash-password pi-kitchen >> users; gca broker --password-file users

    Example: gca broker --print-mosquitto-conf > gca.conf; mosquitto -c gca.conf
    """
    from broker_server.broker.mosquitto import acl_patterns, mosquitto_conf

    if print_mosquitto_conf:
        print(mosquitto_conf(port, host=host, password_file=password_file, acl_file=acl_file), end="")
    elif print_acl:
        print(acl_patterns(), end="")
    elif hash_password is not None:
        print(_hashed(hash_password))
    else:
        asyncio.run(_serve(host, port, _tls(tls_cert, tls_key), password_file))


async def _serve(host: str, port: int, tls: "SSLContext | None", password_file: Path | None) -> None:
    from broker_server.broker.access import gca_rules
    from broker_server.broker.tcp import serve

    users = _users(password_file) if password_file else None
    ready: Future[int] = asyncio.get_running_loop().create_future()
    ready.add_done_callback(lambda done: _announce(host, done.result(), tls is not None, users is not None))
    await serve(host, port, ssl=tls, ready=ready, authentication=users, authorisation=gca_rules() if users else None)


def _announce(host: str, port: int, tls: bool, passwords: bool) -> None:
    address = f"[{host}]" if ":" in host else host
    print(f"listening on {'mqtts' if tls else 'mqtt'}://{address}:{port}; Ctrl-C ends it", flush=True)
    if host not in LOOPBACK and not passwords:
        print("warning: whoever reaches this address may connect; --password-file says who may", file=sys.stderr)


def _tls(certificate: Path | None, key: Path | None) -> "SSLContext | None":
    import ssl

    from edge_client.errors import ConfigError, EnvironmentFault

    if (certificate is None) != (key is None):
        raise ConfigError("give --tls-cert and --tls-key together")
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise EnvironmentFault(f"{certificate}, {key}: {error}; give readable PEM files that match") from None
    return context


def _users(file: Path) -> "PasswordTable":
    """Read lines NAME:HASH; empty ones and those behind a # say nothing."""
    from broker_server.broker.access import PasswordTable
    from edge_client.errors import ConfigError, EnvironmentFault

    make = "make each line with: gca broker --hash-password NAME"
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(PASSWORD_FILE_LIMIT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentFault(f"{file}: {getattr(error, 'strerror', None) or error}; {make}") from None
    if len(text) > PASSWORD_FILE_LIMIT:
        raise ConfigError(f"{file}: is longer than {PASSWORD_FILE_LIMIT:,} characters; {make}")
    hashes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, stored = line.strip().partition(":")
        try:
            PasswordTable({name: stored})
        except ConfigError:
            raise ConfigError(f"{file}, line {number}: is not NAME:HASH; {make}") from None
        if name in hashes:
            raise ConfigError(f"{file}, line {number}: {name} has a line already; keep one of them")
        hashes[name] = stored
    if not hashes:
        raise ConfigError(f"{file}: names nobody; {make}")
    return PasswordTable(hashes)


def _hashed(name: str) -> str:
    """Ask for a password, or read one line where nobody types, and return the line for the password file."""
    import re
    from getpass import getpass

    from broker_server.broker import access
    from edge_client.errors import ConfigError
    from edge_client.protocol.messages import NAME

    if not re.match(NAME, name):
        raise ConfigError(f"--hash-password {name!r}: use 1 to 64 letters, digits, '.', '_' or '-'")
    typed = getpass(f"password of {name}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not typed:
        raise ConfigError(f"--hash-password {name}: the password is empty; type one, or pipe it in as one line")
    return f"{name}:{access.hash_password(typed.encode())}"
