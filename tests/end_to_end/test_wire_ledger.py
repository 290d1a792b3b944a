"""The wire ledger against a capture of the same links."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

LINE = re.compile(r"IP 127\.0\.0\.1\.(\d+) > 127\.0\.0\.1\.(\d+): tcp (\d+)")


async def test_the_stream_ledger_is_what_a_capture_sees(simulate, tmp_path: Path) -> None:
    """Every TCP payload byte on every device's port, in both directions, is in the ledger, and no other."""
    if os.geteuid() != 0 or shutil.which("tcpdump") is None:
        pytest.skip("capturing needs root and tcpdump")
    capture = tmp_path / "capture.txt"
    with capture.open("wb") as output:
        dump = await asyncio.create_subprocess_exec(
            "tcpdump", "-i", "lo", "-n", "-l", "-q", "-B", "65536", "tcp", stdout=output, stderr=asyncio.subprocess.PIPE
        )
        assert dump.stderr is not None
        await dump.stderr.readline()
        await asyncio.sleep(0.5)
        result = await asyncio.to_thread(simulate, "demo", "--rounds", "2", "--link", "2mbit/4mbit/20ms")
        await asyncio.sleep(1)
        dump.terminate()
        complaints = (await dump.stderr.read()).decode()
        await dump.wait()
    assert " 0 packets dropped by kernel" in " " + complaints.replace("\n", " "), complaints
    ports = json.loads((Path(result["study"]) / "network.json").read_text())
    seen = {"up": 0, "down": 0}
    for line in capture.read_text().splitlines():
        if (match := LINE.search(line)) is not None:
            source, target, length = (int(part) for part in match.groups())
            seen["up"] += length if target in ports.values() else 0
            seen["down"] += length if source in ports.values() else 0
    assert result["stream_bytes"] == seen
    assert seen["up"] > 10_000
