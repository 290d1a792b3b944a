"""Every command as a user runs it: exit codes, errors of one line that name the mend, JSON that parses."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import MOSQUITTO, PATIENCE, free_port, open_broker, skip_without_mosquitto
from end_to_end_tools import gca, wait_for

from edge_client.errors import EnvironmentFault
from sim.cli.app import app
from sim.studies import make_directory

COMMANDS = tuple(str(command.name or command.callback.__name__) for command in app.registered_commands)
HEAVY = ("torch", "numpy", "sklearn", "msgspec", "aiomqtt")


def error_line(err: str) -> str:
    """Return the one line that says what went wrong."""
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert "Traceback" not in err
    return err.removeprefix("error: ").rstrip()


# ---- help ------------------------------------------------------------------------------------------------------------


def test_help_comes_without_the_heavy_packages() -> None:
    loaded = f"print(sorted(sys.modules.keys() & set({HEAVY!r})), file=sys.stderr)"
    done = gca("--help", preamble=f"import atexit, sys\natexit.register(lambda: {loaded})")
    assert done.returncode == 0
    assert done.stderr == "[]\n"
    assert all(f" {command} " in done.stdout for command in COMMANDS)
    assert "..." not in done.stdout.partition("Commands:")[2]  # each summary fits its line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_an_example(cli, command: str) -> None:
    said = cli(command, "--help")
    assert said.code == 0 and said.err == ""
    assert "example" in said.out.lower() and f"gca {command}" in said.out.lower().split("example", 1)[1]


def test_no_command_is_forgotten() -> None:
    assert {"simulate", "device", "doctor", "export", "certs", "report"} <= set(COMMANDS) and len(COMMANDS) == 16


def test_the_help_of_a_device_shows_an_example_and_is_as_light() -> None:
    loaded = f"print(sorted(sys.modules.keys() & set({HEAVY!r})), file=sys.stderr)"
    done = gca("device", "--help", preamble=f"import atexit, sys\natexit.register(lambda: {loaded})")
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "gca device --broker mqtt://" in done.stdout


def test_version_is_that_of_the_package() -> None:
    done = gca("--version")
    assert done.returncode == 0 and done.stdout.split()[-1] == "0.1.0"


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["plan", "no-such-study"], 2, ["no-such-study", "demo"]),
        (["plan", "--link", "fast"], 2, ["fast", "3g-fast"]),
        (["plan", "--dataset", "iris"], 2, ["iris", "breast_cancer"]),
        (["plan", "--hardware", "cray"], 2, ["cray", "pi-zero-2-w"]),
        (["plan", "--devices", "0"], 2, ["devices"]),
        (["plan", "--devices", "many"], 2, ["--devices", "--help"]),
        (["plan", "--set", "training.latent=8"], 2, ["latent"]),
        (["plan", "--set", "training.latent_dim"], 2, ["training.latent_dim", "="]),
        (["plan", "--set", "training.latent_dim=wide"], 2, ["latent_dim"]),
        (["plan", "--set", "training.upload_fraction=0.001"], 2, ["upload_fraction", "raise it or use fewer devices"]),
        (["plan", "--colour"], 2, ["--colour", "--help"]),
        (["fly"], 2, ["fly", "--help"]),
        (["simulate", "--broker", "http://127.0.0.1"], 2, ["mqtt://"]),
        (["links", "fast"], 2, ["fast"]),
        (["certs"], 2, ["gca certs broker.local", "--client pi-1"]),
        (["export", "absent", "--to", "csv"], 2, ["--to", "tensorboard", "mlflow"]),
        (["export", "absent", "--to", "mlflow"], 3, ["absent", "holds no study"]),
        (["hardware", "cray"], 2, ["cray"]),
        (["broker", "--tls-cert", "a.pem"], 2, ["--tls-cert and --tls-key"]),
        (["broker", "--tls-cert", "/absent/a.pem", "--tls-key", "/absent/b.pem"], 3, ["/absent/a.pem", "PEM"]),
        (["broker", "--port", "99999"], 2, ["--port", "65535"]),
        (["server", "demo", "--broker", "mqtt://127.0.0.1", "--run", "a/b"], 2, ["a/b"]),
        (["server", "demo", "--run", "x"], 2, ["--broker"]),
        (["server", "demo", "--broker", "mqtt://u:secret@127.0.0.1", "--run", "x"], 2, ["GCA_PASSWORD"]),
    ],
)  # fmt: skip
def test_a_wrong_word_is_told_in_one_line(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, told: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli(*words)
    assert said.code == code, said
    line = error_line(said.err)
    assert all(part in line for part in told), line
    assert "secret" not in line
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_a_wrong_file_is_told_with_the_key_and_its_limits(cli, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('dataset = "breast_cancer"\nmethod = "gca"\ndevices = "eight"\n')
    said = cli("plan", str(tmp_path / "study.toml"))
    assert said.code == 2 and "devices" in error_line(said.err)
    (tmp_path / "study.toml").write_text("devices = = 8\n")
    said = cli("plan", str(tmp_path / "study.toml"))
    assert said.code == 2 and "study.toml" in error_line(said.err)


def test_usage_and_environment_have_their_exit_codes_in_the_real_command(tmp_path: Path) -> None:
    usage = gca("plan", "--link", "fast")
    assert (usage.returncode, usage.stdout) == (2, "") and "fast" in error_line(usage.stderr)
    (tmp_path / "kept.txt").touch()
    full = gca("simulate", "demo", "--rounds", "1", "--link", "none", "--output", str(tmp_path), "--json")
    assert full.returncode == 3
    assert "is not empty; give a new folder as --output" in error_line(full.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_a_folder_with_a_study_in_it_may_be_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "study.toml").touch()
    with pytest.raises(EnvironmentFault, match=f"is not empty; .*, or go on .*: --resume {tmp_path}$"):
        make_directory(tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--id", "a b", "--data", "x.npz"], 2, "--id 'a b'"),
        (["--id", "pi-1", "--data", "/absent/x.npz"], 3, "/absent/x.npz: No such file"),
        (["--id", "server", "--data", "x.npz"], 2, "--id server: that is the server's own name"),
        (["--id", "a", "--data", "x.npz", "--chunk-size", "0"], 2, "--chunk-size 0: give 256 to 65536 bytes"),
        (["--id", "a", "--data", "x.npz", "--chunk-size", "65537"], 2, "--chunk-size 65537: give 256"),
        (["--id", "a", "--data", "x.npz", "--keepalive", "65536"], 2, "--keepalive 65536: give 1 to 65535 seconds"),
        (["--id", "a", "--data", "x.npz", "--up-rate", "-5"], 2, "--up-rate -5: give bits per second"),
        (["--id", "a", "--data", "x.npz", "--down-rate", "nan"], 2, "--down-rate nan: give bits per second"),
        (["--id", "a", "--data", "x.npz", "--up-rate", "0.1"], 2, "need a keepalive"),
        (["--id", "pi-1", "--data", "/absent/x.npz", "--debug"], 3, "/absent/x.npz: No such file"),
    ],
)
def test_a_device_tells_its_errors_alike(words: list[str], code: int, told: str) -> None:
    done = gca("device", "--broker", "mqtt://127.0.0.1", "--run", "magic", *words)
    assert done.returncode == code
    assert ("Traceback" in done.stderr) == ("--debug" in words)
    assert told in error_line(done.stderr.splitlines(keepends=True)[-1])


def test_debug_shows_where_an_error_comes_from() -> None:
    done = gca("plan", "--link", "fast", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("error: ")


# ---- what there is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["datasets", "links", "hardware"])
def test_lists_as_tables_and_as_json(cli, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.delenv("GCA_DATA_DIR", raising=False)  # checking large files takes seconds
    table, listed = cli(command), cli(command, "--json")
    assert (table.code, listed.code, table.err, listed.err) == (0, 0, "", "")
    names = [one["name"] for one in json.loads(listed.out)]
    assert len(names) > 3 and len(set(names)) == len(names)
    assert all(name in table.out for name in names)


@pytest.mark.parametrize(("command", "name"), [("links", "nbiot-nb2-peak"), ("hardware", "pi-zero-2-w")])
def test_one_of_them_with_its_sources(cli, command: str, name: str) -> None:
    told, listed = cli(command, name), cli(command, name, "--json")
    assert told.code == 0 and told.out.startswith(f"{name}: ") and "[" in told.out
    (one,) = json.loads(listed.out)
    assert one["name"] == name and one["provenance"]


def test_lists_in_the_real_command() -> None:
    done = gca("links", "nbiot-nb1-peak", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)[0]["name"] == "nbiot-nb1-peak"


# ---- doctor ----------------------------------------------------------------------------------------------------------


async def test_doctor_finds_the_embedded_broker_fit() -> None:
    from asyncio import to_thread

    async with open_broker("embedded") as broker:
        done = await to_thread(gca, "doctor", "--broker", broker.url, "--json")
    findings = {one["what"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0, findings
    assert {findings[what]["state"] for what in ("python", "numpy", "broker", "round trip", "largest message")} == {
        "ok"
    }
    assert "1048576 bytes" in findings["largest message"]["detail"]


async def test_doctor_names_a_limit_that_is_too_low(cli) -> None:
    from asyncio import to_thread

    from broker_server.broker.limits import Limits

    async with open_broker("embedded", limits=Limits(max_packet_size=20_000)) as broker:
        said = await to_thread(cli, "doctor", "--broker", broker.url)
    assert said.code == 3
    (line,) = [line for line in said.out.splitlines() if "largest message" in line]
    assert line.startswith("missing") and "66560 did not" in line and "max_packet_size" in line


def test_doctor_names_a_broker_that_is_not_there(cli) -> None:
    url = f"mqtt://127.0.0.1:{free_port()}"
    said = cli("doctor", "--broker", url, "--json")
    assert said.code == 3
    (missing,) = [one for one in json.loads(said.out) if one["state"] == "missing"]
    assert missing["what"] == "broker" and url in missing["detail"]


# ---- broker ----------------------------------------------------------------------------------------------------------


def test_a_broker_says_where_it_listens_and_ends_with_ctrl_c() -> None:
    port = free_port()
    command = [sys.executable, "-m", "sim.cli", "broker", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == f"listening on mqtt://127.0.0.1:{port}; Ctrl-C ends it\n"
            second = gca("broker", "--port", str(port))
            assert second.returncode == 3
            assert str(port) in error_line(second.stderr)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.mosquitto
def test_mosquitto_takes_the_printed_configuration(cli, tmp_path: Path) -> None:
    skip_without_mosquitto()
    port = free_port()
    printed = gca("broker", "--print-mosquitto-conf", "--port", str(port))
    assert printed.returncode == 0 and printed.stderr == ""
    (tmp_path / "gca.conf").write_text(printed.stdout)
    command = [str(MOSQUITTO), "-c", str(tmp_path / "gca.conf")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            wait_for(lambda: process.poll() is not None or answers(port))
            assert process.poll() is None
            said = cli("doctor", "--broker", f"mqtt://127.0.0.1:{port}")
        finally:
            process.terminate()
            log = process.communicate(timeout=PATIENCE)[0]
    assert said.code == 0, said.out + log
    assert "Error" not in log


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_printed_access_rules_are_only_rules(cli) -> None:
    said = cli("broker", "--print-acl")
    lines = [line for line in said.out.splitlines() if line and not line.startswith("#")]
    assert said.code == 0 and {line.split()[0] for line in lines} == {"user", "topic", "pattern"}
