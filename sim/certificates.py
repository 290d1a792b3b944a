"""A certificate authority of one's own in a folder, for brokers on real machines: what `gca certs` does.

The `openssl` command does the work: it comes with practically every Linux, a Raspberry Pi's included, so nothing has
to be installed for it. The folder holds `ca.crt`, `ca.key`, and a .crt and a .key for each host in `hosts/` and for
each client in `clients/`. Host certificates serve brokers only and client certificates clients only, so no device can
play the broker with its own.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from edge_client.errors import ConfigError, EnvironmentFault
from edge_client.protocol.messages import NAME

CA_DAYS, DAYS = 3650, 825
_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_CA: Final = "basicConstraints = critical, CA:TRUE, pathlen:0\nkeyUsage = critical, keyCertSign, cRLSign"
_LEAF: Final = "basicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature"
_PATIENCE_S: Final = 60.0


class Authority:
    """The CA in a folder; made there if the folder has none.

    Raises:
        EnvironmentFault: there is no `openssl`, it fails, or the folder cannot be written.
    """

    def __init__(self, directory: Path, days: int = CA_DAYS) -> None:
        self.directory, self.certificate, self._key = directory, directory / "ca.crt", directory / "ca.key"
        found = shutil.which("openssl")
        if found is None:
            raise EnvironmentFault("gca certs needs the openssl command; install it (Debian: apt install openssl)")
        self._openssl = found
        self.is_new = not self._key.exists() and not self.certificate.exists()
        if self.is_new:
            self._make(self._key, self.certificate, "gca CA", f"{_CA}\nsubjectKeyIdentifier = hash", days, signed=False)
        elif not (self._key.exists() and self.certificate.exists()):
            raise EnvironmentFault(f"{directory}: holds one of ca.crt and ca.key; a CA needs both")

    def host(self, names: Sequence[str], days: int = DAYS) -> Path:
        """Make the certificate of a broker that is reached by these DNS names and addresses; return its path.

        Raises:
            ConfigError: a name is none, or the certificate exists already.
        """
        listed = ", ".join(_alternative(name) for name in names)
        path = self.directory / "hosts" / f"{names[0].replace('*', '_').replace(':', '_')}.crt"
        return self._issue(path, "gca broker", f"extendedKeyUsage = serverAuth\nsubjectAltName = {listed}", days)

    def client(self, name: str, days: int = DAYS) -> Path:
        """Make the certificate of the device `name`, or of the server, whose name is `server`; return its path.

        Raises:
            ConfigError: no device can have that name, or the certificate exists already.
        """
        if not re.match(NAME, name):
            raise ConfigError(f"--client {name[:80]!r}: use 1 to 64 letters, digits, '.', '_' or '-'")
        return self._issue(self.directory / "clients" / f"{name}.crt", name, "extendedKeyUsage = clientAuth", days)

    def _issue(self, path: Path, common_name: str, purpose: str, days: int) -> Path:
        key = path.with_suffix(".key")
        if path.exists() or key.exists():
            raise ConfigError(f"{path}: exists; delete it and its key to have them made anew")
        identifiers = "subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid"
        self._make(key, path, common_name, f"{_LEAF}\n{purpose}\n{identifiers}", days, signed=True)
        return path

    def _make(self, key: Path, path: Path, common_name: str, extensions: str, days: int, *, signed: bool) -> None:
        """Make key and certificate beside their places and move them there, the certificate last."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=path.parent) as folder:  # nobody else may look into it
                new_key, new, config, request = (Path(folder) / name for name in ("key", "crt", "config", "request"))
                config.write_text(f"[req]\ndistinguished_name = name\n[name]\n[extensions]\n{extensions}\n")
                subject, end = ("-subj", f"/CN={common_name}", "-config", str(config)), ("-days", str(days), "-out")
                self._run("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(new_key))
                new_key.chmod(0o600)
                if signed:
                    self._run("req", "-new", "-key", str(new_key), *subject, "-out", str(request))
                    issuer = ("-CA", str(self.certificate), "-CAkey", str(self._key), "-set_serial", _serial())
                    extended = ("-extfile", str(config), "-extensions", "extensions")
                    self._run("x509", "-req", "-in", str(request), *issuer, *extended, *end, str(new))
                else:
                    extended = ("-extensions", "extensions", "-set_serial", _serial())
                    self._run("req", "-x509", "-new", "-key", str(new_key), *subject, *extended, *end, str(new))
                new_key.replace(key)
                new.replace(path)
        except OSError as error:
            raise EnvironmentFault(f"{path}: {error.strerror or error}; choose a --directory to write to") from None

    def _run(self, *words: str) -> None:
        done = subprocess.run([self._openssl, *words], capture_output=True, text=True, timeout=_PATIENCE_S)  # noqa: S603
        if done.returncode:
            told = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise EnvironmentFault(f"openssl {words[0]}: {told[:300]}; is {self.directory} a folder of gca certs?")


def _alternative(name: str) -> str:
    """Return a name as an entry of subjectAltName."""
    try:
        return f"IP:{ip_address(name)}"
    except ValueError:
        pass
    if len(name) > 253 or not _DNS.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):
        raise ConfigError(f"{name[:80]!r} is neither a host name nor an address; write it as clients will, no mqtts://")
    return f"DNS:{name}"


def _serial() -> str:
    """A random serial number, so that a CA needs no counter."""
    from secrets import randbits

    return str(1 + randbits(150))
