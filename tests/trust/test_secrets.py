"""Passwords come from the environment and keys from files; neither shows in a study, in output or in an argument."""

import asyncio
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from trust.credentials import guarded

from broker_server.study.store import StudyStore

SMALL = ("demo", "--devices", "2", "--rounds", "2", "--set", "training.upload_fraction=0.5", "--wait", "60")


def holding(secret: bytes, folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if secret in path.read_bytes()]


async def gca(*arguments: str, password: str | None) -> asyncio.subprocess.Process:
    secret = {"GCA_PASSWORD": password} if password else {}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sim.cli", *arguments, env=os.environ | secret,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("way", "kind"),
    [("password", "embedded"), pytest.param("certificate", "mosquitto", marks=pytest.mark.mosquitto)],
)
async def test_no_secret_is_in_a_study_or_in_what_is_said(way: str, kind: str, certs: Path, tmp_path: Path) -> None:
    """Server and devices as on real machines, each with credentials of its own; one of them has the wrong ones."""
    data, study = tmp_path / "records.npz", tmp_path / "study"
    np.savez(data, samples=np.random.default_rng(1).normal(size=(60, 5)))
    async with guarded(kind, way, certs) as fort:

        def credentials(name: str) -> tuple[tuple[str, ...], str | None]:
            if fort.certs is None:
                return (), f"password of {name}"
            mine = fort.certs / "clients" / name
            return ("--ca-file", str(fort.certs / "ca.crt"), "--cert", f"{mine}.crt", "--key", f"{mine}.key"), None

        async def start(name: str, *arguments: str) -> asyncio.subprocess.Process:
            files, password = credentials(name)
            return await gca(*arguments, "--broker", fort.broker.url, "--run", "r", *files, password=password)

        processes = [await start("server", "server", *SMALL, "--output", str(study))]
        processes += [await start(name, "device", "--id", name, "--data", str(data)) for name in ("a", "b")]
        said = await asyncio.gather(*(process.communicate() for process in processes))
        if fort.certs is None:
            wrong = await gca("--debug", "device", "--id", "a", "--data", str(data), "--run", "r", "--broker",
                              fort.broker.url, password="password of b")  # fmt: skip
            said.append(await wrong.communicate())
            assert wrong.returncode == 3 and b"GCA_PASSWORD" in said[-1][0]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    with StudyStore.open(study) as store:
        assert store.rows("SELECT completed FROM runs") == [(1,)]
    secrets = [b"password of "]
    secrets += [key.read_bytes().splitlines()[1] for key in certs.rglob("*.key")]
    for secret in secrets:
        assert holding(secret, study) == []
        assert not any(secret in out for out, _ in said)
