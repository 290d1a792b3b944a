"""TLS on the broker's side: its own certificate and, for mutual TLS, the names in those of its clients."""

import logging
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from edge_client.errors import EnvironmentFault

_log = logging.getLogger(__name__)

_QUIET = 60.0  # seconds between two lines about one reason: whoever is refused comes back and back


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the context to listen with; TLS 1.2 or newer.

    With `client_ca`, a client's certificate must be of that CA. One without any gets through the handshake, so that it
    can be refused in MQTT's own words (`access.CertificateNames`); asyncio ends a failed handshake without an alert.

    Raises:
        EnvironmentFault: a file is no readable PEM file, or key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = type("_OfThisContext", (_Telling,), {"told": {}})
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


class _Telling(ssl.SSLObject):
    """Tells the operator of a handshake that fails, which asyncio does not; each reason once a minute."""

    told: ClassVar[dict[str, float]] = {}  # when, by reason; the reasons are OpenSSL's, so there are few

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            reason, now = (
                getattr(error, "verify_message", None) or error.reason or type(error).__name__,
                time.monotonic(),
            )
            if now - self.told.get(reason, -_QUIET) >= _QUIET:
                self.told[reason] = now
                _log.warning("a client's TLS handshake failed: %s", reason)
            raise


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the one common name of a verified certificate, as `SSLSocket.getpeercert` gives it; None without one, and
    where there are several, since then it is nobody's name."""
    parts = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    names = [value for key, value in parts if key == "commonName"]
    return names[0] if len(names) == 1 else None
