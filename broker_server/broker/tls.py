"""TLS on the broker's side: its own certificate and, for mutual TLS, the names in those of its clients."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_client.errors import EnvironmentFault


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the context to listen with; TLS 1.2 or newer.

    With `client_ca`, a client's certificate must be of that CA. One without any gets through the handshake, so that it
    can be refused in MQTT's own words (`access.CertificateNames`); asyncio ends a failed handshake without an alert.

    Raises:
        EnvironmentFault: a file is no readable PEM file, or key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # never stops to ask on a terminal
    except (OSError, ssl.SSLError) as error:
        mend = "give readable PEM files that match, the key without a passphrase"
        raise EnvironmentFault(f"{certificate}, {key}: {error}; {mend}") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise EnvironmentFault(f"{client_ca}: {error}; give the PEM file of the clients' CA") from None
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the one common name of a verified certificate, as `SSLSocket.getpeercert` gives it; None without one, and
    where there are several, since then it is nobody's name."""
    parts = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    names = [value for key, value in parts if key == "commonName"]
    return names[0] if len(names) == 1 else None
