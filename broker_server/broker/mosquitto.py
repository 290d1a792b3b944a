"""The mosquitto configuration and access list under which this project works.

Needed where the embedded broker does not serve, for instance with clients that speak MQTT 5. Use mosquitto 2.0.22
or later: before 2.0.13 one acknowledgement releases a whole window of messages instead of one, which defeats a
server that takes messages at its own pace.
"""

from pathlib import Path

from broker_server.broker.access import gca_rules
from edge_client.errors import ConfigError

_MAX_PACKET_SIZE_LIMIT = 268_435_460  # MQTT's own: remaining length plus fixed header


def mosquitto_conf(
    port: int = 1883,
    *,
    host: str = "127.0.0.1",
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    client_ca: Path | None = None,
    password_file: Path | None = None,
    acl_file: Path | None = None,
    max_packet_size: int = 64_000_000,
    persistence_dir: Path | None = None,
    user: str | None = None,
) -> str:
    """Return the text of a mosquitto.conf, each setting with its reason.

    Args:
        port, host: where to listen.
        tls_cert, tls_key: PEM files of the broker's certificate and key; without them there is no TLS.
        client_ca: PEM file of the CA of the clients' certificates, in which the common name is the device id.
        password_file: made with mosquitto_passwd; without it and `client_ca` everybody may connect.
        acl_file: the text of `acl_patterns`, written to a file.
        max_packet_size: bytes of one MQTT packet.
        persistence_dir: where sessions survive a restart of the broker; None keeps them in memory only.
        user: the system user to run as when started by root; mosquitto's default is `mosquitto`.

    Raises:
        ConfigError: port or packet size out of range, a value that would start another line, or files that do not go
            together.
    """
    if not 0 < port < 65_536:
        raise ConfigError(f"mosquitto port {port}: must be 1 to 65535")
    if not 0 < max_packet_size <= _MAX_PACKET_SIZE_LIMIT:
        raise ConfigError(f"mosquitto max_packet_size {max_packet_size}: must be 1 to {_MAX_PACKET_SIZE_LIMIT}")
    check_tls(tls_cert, tls_key, client_ca, password_file)
    anonymous = password_file is None and client_ca is None
    settings = [
        (f"listener {port} {host}", "This address only; the lines on TLS below belong to this listener."),
        (f"allow_anonymous {_word(anonymous)}", "Stated, because the default differs between versions."),
        ("max_queued_messages 1000000", "The default of 1000 drops acknowledged messages without telling anybody."),
        ("max_queued_bytes 0", "No second bound behind the first; 0 means none here, unlike for the line above."),
        ("max_inflight_messages 20", "What a server that acknowledges by hand has to hold at most."),
        (f"max_packet_size {max_packet_size}", "Stated, because 2.1 refuses packets above 2 MB by default."),
        ("set_tcp_nodelay true", "Small control messages do not wait for an acknowledgement of TCP."),
        (f"persistence {_word(persistence_dir is not None)}", "Whether sessions survive a restart of the broker."),
    ]
    if tls_cert is not None:
        settings.append((f"certfile {tls_cert}", "Must name every host name and address that clients connect to."))
        settings.append((f"keyfile {tls_key}", "Without a passphrase, and readable by mosquitto alone."))
    if client_ca is not None:
        settings.append((f"cafile {client_ca}", "Who signs the certificates of devices and server."))
        settings.append(("require_certificate true", "No client without one."))
        settings.append(("use_identity_as_username true", "The certificate's common name is the user of the rules."))
    if persistence_dir is not None:
        settings.append((f"persistence_location {persistence_dir}/", "The trailing slash is part of the path."))
    if password_file is not None:
        settings.append((f"password_file {password_file}", "User names are device ids; the server's is `server`."))
    if acl_file is not None:
        settings.append((f"acl_file {acl_file}", "A device reaches its own topics only."))
    if user is not None:
        settings.append((f"user {user}", "Otherwise a mosquitto that root starts cannot read root's files."))
    if any("\n" in line for line, _ in settings):
        raise ConfigError("mosquitto configuration: a value holds a line break")
    return "\n".join(f"# {reason}\n{line}\n" for line, reason in settings)


def check_tls(certificate: Path | None, key: Path | None, client_ca: Path | None, password_file: Path | None) -> None:
    """Raise `ConfigError` unless these files, for mosquitto or for the embedded broker, go together."""
    if (certificate is None) != (key is None):
        raise ConfigError("give --tls-cert and --tls-key together")
    if client_ca is not None and certificate is None:
        raise ConfigError("--client-ca asks for certificates, which only TLS shows: give --tls-cert and --tls-key too")
    if client_ca is not None and password_file is not None:
        raise ConfigError("--client-ca and --password-file: both say who a client is; give one of them")


def acl_patterns(run: str = "+") -> str:
    """Return the text of mosquitto's acl_file for our topics: the same rules as the embedded broker's `gca_rules`."""
    rules = gca_rules(run)
    lines = ["# The server; its line has to come before the patterns, which are for everybody."]
    for user, patterns in rules.trusted.items():
        lines += [f"user {user}", *(f"topic readwrite {pattern}" for pattern in patterns)]
    lines += ["", "# A device, by its user name: what it may write, then what it may read."]
    lines += [f"pattern write {pattern}" for pattern in rules.write]
    lines += [f"pattern read {pattern}" for pattern in rules.read]
    return "\n".join(lines) + "\n"


def _word(value: bool) -> str:
    return "true" if value else "false"
