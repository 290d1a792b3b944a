"""`gca certs`: a certificate authority in a folder, and certificates for brokers and clients."""

from pathlib import Path
from typing import Annotated

import typer


def certs(
    host: Annotated[
        list[str] | None, typer.Argument(help="a broker: its DNS name or address, or several joined by commas")
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="a device id, or server: a certificate that says who a client is")
    ] = None,
    directory: Annotated[Path, typer.Option(help="folder of the CA; made if it is not there")] = Path("certs"),
    days: Annotated[int, typer.Option(min=1, max=3650, help="how long the certificates are valid")] = 825,
) -> None:
    """Make certificates for brokers and clients.

    A CA to sign them is made where there is none yet. Keep ca.key to yourself; clients need ca.crt, and each its own
    certificate and key if the broker asks for them.

    Example: gca certs broker.local,192.168.1.10 --client server --client pi-1
    """
    from edge_client.errors import ConfigError
    from sim.certificates import Authority

    if not (host or client):
        raise ConfigError(
            "gca certs: name a broker by its address (gca certs broker.local), or clients (--client pi-1)"
        )
    authority = Authority(directory)
    if authority.is_new:
        print(f"made {authority.certificate}: --ca-file for everybody, --client-ca for a broker that asks for names")
    for names in host or ():
        path = authority.host(names.split(","), days)
        print(f"made {path}: gca broker --tls-cert {path} --tls-key {path.with_suffix('.key')}")
    for name in client or ():
        path = authority.client(name, days)
        print(f"made {path}: --cert {path} --key {path.with_suffix('.key')}")
