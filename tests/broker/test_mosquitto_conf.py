"""The text for mosquitto; the conformance tests run a mosquitto with it."""

from pathlib import Path

import pytest

from broker_server.broker.mosquitto import acl_patterns, mosquitto_conf
from edge_client.errors import ConfigError


def test_every_setting_has_its_reason_and_the_vital_ones_are_there() -> None:
    lines = mosquitto_conf(1884, password_file=Path("/p"), acl_file=Path("/a"), max_packet_size=5).splitlines()
    settings = {}
    for comment, setting, blank in zip(lines[::3], lines[1::3], [*lines[2::3], ""], strict=True):
        assert comment.startswith("# ")
        assert blank == ""
        name, _, value = setting.partition(" ")
        settings[name] = value
    assert settings == {
        "listener": "1884 127.0.0.1",
        "allow_anonymous": "false",
        "max_queued_messages": "1000000",
        "max_queued_bytes": "0",
        "max_inflight_messages": "20",
        "max_packet_size": "5",
        "set_tcp_nodelay": "true",
        "persistence": "false",
        "password_file": "/p",
        "acl_file": "/a",
    }


def test_certificates_say_who_a_client_is() -> None:
    lines = mosquitto_conf(1883, tls_cert=Path("/c"), tls_key=Path("/k"), client_ca=Path("/ca")).splitlines()
    assert {"certfile /c", "keyfile /k", "cafile /ca", "allow_anonymous false"} <= set(lines)
    assert {"require_certificate true", "use_identity_as_username true"} <= set(lines)
    assert "require_certificate true" not in mosquitto_conf(1883, tls_cert=Path("/c"), tls_key=Path("/k"))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"tls_cert"}, "--tls-key"),
        ({"client_ca"}, "--tls-cert"),
        ({"tls_cert", "tls_key", "client_ca", "password_file"}, "one of them"),
    ],
)
def test_files_that_do_not_go_together_are_refused(files: set[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        mosquitto_conf(1883, **{name: Path("/f") for name in files})  # type: ignore[arg-type]


def test_without_passwords_everybody_may_connect() -> None:
    assert "\nallow_anonymous true\n" in mosquitto_conf(1883)


@pytest.mark.parametrize(
    "arguments", [{"port": 0}, {"port": 70_000}, {"max_packet_size": 0}, {"host": "::1\nuser root"}]
)
def test_impossible_values_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        mosquitto_conf(**({"port": 1883} | arguments))  # type: ignore[arg-type]


def test_access_list_of_our_topics() -> None:
    rules = [line for line in acl_patterns().splitlines() if line and not line.startswith("#")]
    assert rules == [
        "user server",
        "topic readwrite gca/v1/#",
        "pattern write gca/v1/+/pres/%u",
        "pattern write gca/v1/+/join/%u",
        "pattern write gca/v1/+/met/%u",
        "pattern write gca/v1/+/up/%u/#",
        "pattern read gca/v1/+/round",
        "pattern read gca/v1/+/bc/#",
        "pattern read gca/v1/+/dn/%u/#",
        "pattern read gca/v1/+/pres/%u",
    ]
    assert "pattern write gca/v1/demo/up/%u/#" in acl_patterns("demo")
