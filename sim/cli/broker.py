"""`gca broker`: the embedded broker on its own, or the configuration of a real one."""

import asyncio
import sys
from asyncio import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from broker_server.broker.access import Authentication

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def broker(
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 for all")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=1, max=65535)] = 1883,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the broker's certificate, see gca certs")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="only clients with a certificate of this CA may connect, under the name in it")
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="who may connect, and to their own topics only: a line NAME:HASH for each")
    ] = None,
    add_user: Annotated[
        str | None, typer.Option(metavar="NAME", help="ask for a password, write it to the password file and exit")
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

    A client that has proved its name, by password or certificate, reaches the topics of that device id only; `server`
    is the name of the server.

    Example: gca broker --host 0.0.0.0

    Example: gca broker --password-file users --add-user pi-kitchen; gca broker --password-file users

    Example: gca broker --tls-cert certs/hosts/pi.crt --tls-key certs/hosts/pi.key --client-ca certs/ca.crt --port 8883

    Example: gca broker --print-mosquitto-conf > gca.conf; mosquitto -c gca.conf
    """
    from broker_server.broker.mosquitto import acl_patterns, check_tls, mosquitto_conf

    if print_mosquitto_conf:
        conf = mosquitto_conf(port, host=host, acl_file=acl_file, tls_cert=tls_cert, tls_key=tls_key,
                              client_ca=client_ca, password_file=password_file)  # fmt: skip
        print(conf, end="")
    elif print_acl:
        print(acl_patterns(), end="")
    elif add_user is not None:
        _add(add_user, password_file)
    else:
        check_tls(tls_cert, tls_key, client_ca, password_file)
        asyncio.run(_serve(host, port, tls_cert, tls_key, client_ca, password_file))


async def _serve(
    host: str, port: int, certificate: Path | None, key: Path | None, client_ca: Path | None, password_file: Path | None
) -> None:
    from broker_server.broker.access import gca_rules
    from broker_server.broker.tcp import serve
    from broker_server.broker.tls import server_context

    tls = server_context(certificate, key, client_ca) if certificate and key else None
    names = _names(client_ca, password_file)
    ready: Future[int] = asyncio.get_running_loop().create_future()
    ready.add_done_callback(lambda done: _announce(host, done.result(), tls is not None, names is not None))
    await serve(host, port, ssl=tls, ready=ready, authentication=names, authorisation=gca_rules() if names else None)


def _names(client_ca: Path | None, password_file: Path | None) -> "Authentication | None":
    """Return what tells who a client is."""
    from broker_server.broker.access import CertificateNames
    from broker_server.broker.password_file import open_to_others, read_users

    if password_file is None:
        return CertificateNames() if client_ca else None
    users = read_users(password_file)
    if open_to_others(password_file):
        print(f"warning: others can read {password_file}; chmod 600 {password_file}", file=sys.stderr)
    return users


def _announce(host: str, port: int, tls: bool, names: bool) -> None:
    address = f"[{host}]" if ":" in host else host
    print(f"listening on {'mqtts' if tls else 'mqtt'}://{address}:{port}; Ctrl-C ends it", flush=True)
    if host not in LOOPBACK and not names:
        mend = "--password-file or --client-ca says who may"
        print(f"warning: whoever reaches this address may connect; {mend}", file=sys.stderr)
    elif host not in LOOPBACK and not tls:
        print("warning: passwords and codes cross the network unencrypted; see gca certs", file=sys.stderr)


def _add(name: str, file: Path | None) -> None:
    """Ask for a password, or read one line where nobody types."""
    from getpass import getpass

    from broker_server.broker.password_file import add_user, check_name
    from edge_client.errors import ConfigError

    if file is None:
        raise ConfigError(f"--add-user {name[:80]}: into which file? Give --password-file too")
    check_name(name)
    typed = getpass(f"password of {name}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    add_user(file, name, typed)
    print(f"{file}: {name} may connect")
