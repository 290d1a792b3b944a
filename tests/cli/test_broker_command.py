"""`gca broker` with passwords, and what it prints for mosquitto."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from brokers import PATIENCE, free_port

from broker_server.broker.access import hash_password, verify_password
from broker_server.broker.password_file import read_users
from edge_client.errors import EnvironmentFault
from edge_client.transport.base import Settings
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector

Add = Callable[[str, str], None]


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return tmp_path / "users"


@pytest.fixture
def add(users: Path) -> Add:
    def ask(name: str, password: str) -> None:
        command = [sys.executable, "-m", "sim.cli", "broker", "--password-file", str(users), "--add-user", name]
        done = subprocess.run(command, input=password + "\n", capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stderr) == (0, "")
        assert password not in done.stdout

    return ask


@contextmanager
def running(*words: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `gca broker` on a free port; give what it said first."""
    command = [sys.executable, "-m", "sim.cli", "broker", "--port", str(free_port()), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline(), process
        finally:
            process.kill()


def address(line: str) -> str:
    found = re.search(r"mqtt://\S+:\d+", line)
    assert found, line
    return found[0]


def test_a_password_becomes_a_line_that_proves_it_and_does_not_hold_it(users: Path, add: Add) -> None:
    add("pi-kitchen", "correct horse")
    name, _, stored = users.read_text().strip().partition(":")
    assert name == "pi-kitchen" and "horse" not in stored
    assert verify_password(b"correct horse", stored) and not verify_password(b"correct", stored)
    assert users.stat().st_mode & 0o777 == 0o600


def test_a_new_password_replaces_the_old_one_and_leaves_the_others(users: Path, add: Add) -> None:
    add("pi-1", "number-one")
    users.write_text(f"# of the kitchen\n{users.read_text()}")
    add("pi-2", "number-two")
    add("pi-1", "number-three")
    comment, second, first = users.read_text().splitlines()
    assert comment == "# of the kitchen" and second.startswith("pi-2:") and first.startswith("pi-1:")
    table = read_users(users)
    assert table.identify("c", "pi-1", b"number-three") and table.identify("c", "pi-2", b"number-two")
    assert table.identify("c", "pi-1", b"number-one") is None


async def test_only_who_is_in_the_file_may_connect_and_only_to_his_own_topics(users: Path, add: Add) -> None:
    add("pi-1", "one")
    add("pi-2", "two")
    with running("--password-file", str(users)) as (line, _):
        url = address(line)
        for user, password in (("pi-1", "two"), ("pi-3", "one"), (None, None)):
            with pytest.raises(EnvironmentFault, match="GCA_PASSWORD"):
                async with connector(endpoint(url, username=user, password=password))(Settings("stranger")):
                    pass
        async with connector(endpoint(url, username="pi-1", password="one"))(Settings("pi-1")) as transport:
            await transport.subscribe("gca/v1/magic/dn/pi-1/#")
            with pytest.raises(EnvironmentFault, match="ACL"):
                await transport.subscribe("gca/v1/magic/dn/pi-2/#")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("pi-1:secret\n", "line 1: is not NAME:HASH"),
        ("\n# nobody\n", "names nobody"),
        ("pi-1:{hash}\npi-1:{hash}\n", "line 2: pi-1 has a line already"),
    ],
)
def test_a_bad_password_file_is_told_by_its_line(cli, users: Path, content: str, told: str) -> None:
    users.write_text(content.format(hash=hash_password(b"one")))
    said = cli("broker", "--password-file", str(users))
    assert said.code == 2 and said.err.count("\n") == 1
    assert str(users) in said.err and told in said.err and "secret" not in said.err


def test_an_absent_password_file_lets_nobody_in(cli) -> None:
    said = cli("broker", "--password-file", "/absent/users")
    assert said.code == 3 and "/absent/users: No such file" in said.err and "--add-user NAME" in said.err


def test_an_open_address_without_passwords_is_warned_about() -> None:
    with running("--host", "0.0.0.0") as (line, process):
        assert line.startswith("listening on mqtt://0.0.0.0:")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "warning: whoever reaches this address may connect" in err


def test_no_name_with_a_slash_gets_a_password(cli) -> None:
    said = cli("broker", "--add-user", "a/b", "--password-file", "users")
    assert said.code == 2 and "--add-user 'a/b'" in said.err


def test_a_password_needs_a_file(cli) -> None:
    said = cli("broker", "--add-user", "pi-1")
    assert said.code == 2 and "--password-file" in said.err


def test_a_password_file_that_others_can_read_is_warned_about(users: Path, add: Add) -> None:
    add("pi-1", "one")
    users.chmod(0o644)
    with running("--password-file", str(users)) as (_, process):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert f"warning: others can read {users}; chmod 600 {users}" in err


def test_mosquitto_is_told_of_passwords_and_rules(cli) -> None:
    words = ("--print-mosquitto-conf", "--port", "1884", "--password-file", "/etc/gca/users", "--acl-file", "/etc/acl")
    said = cli("broker", *words)
    told = {"listener 1884 127.0.0.1", "allow_anonymous false", "password_file /etc/gca/users", "acl_file /etc/acl"}
    assert said.code == 0 and told <= set(said.out.splitlines())
