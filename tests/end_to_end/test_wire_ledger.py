"""The wire ledger against a capture of the same links."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

LINE = re.compile(r"IP 127\.0\.0\.1\.(\d+) > 127\.0\.0\.1\.(\d+): Flags .* seq (\d+):(\d+)")


def streamed(capture: str, ports: set[int]) -> dict[str, int]:
    """Return the bytes of the streams to these ports and from them; what TCP sent a second time is no more of them."""
    ends: dict[tuple[int, int], int] = {}
    seen = {"up": 0, "down": 0}
    for line in capture.splitlines():
        if (match := LINE.search(line)) is None:
            continue
        source, target, first, end = (int(part) for part in match.groups())
        new = max(0, end - max(first, ends.get((source, target), 1)))  # numbered from 1 after the handshake
        ends[source, target] = max(end, ends.get((source, target), 1))
        for direction, port in (("up", target), ("down", source)):
            seen[direction] += new if port in ports else 0
    return seen


async def test_the_stream_ledger_is_what_a_capture_sees(simulate, tmp_path: Path) -> None:
    """Every TCP payload byte on every device's port, in both directions, is in the ledger, and no other."""
    if os.geteuid() != 0 or shutil.which("tcpdump") is None:
        pytest.skip("capturing needs root and tcpdump")
    capture = tmp_path / "capture.txt"
    with capture.open("wb") as output:
        dump = await asyncio.create_subprocess_exec(
            "tcpdump", "-i", "lo", "-n", "-l", "-B", "65536", "tcp", stdout=output, stderr=asyncio.subprocess.PIPE
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
    ports = set(json.loads((Path(result["study"]) / "network.json").read_text()).values())
    seen = streamed(capture.read_text(), ports)
    assert result["stream_bytes"] == seen
    assert seen["up"] > 10_000
