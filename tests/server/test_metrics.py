"""What Prometheus is told: the figures of the study, while the run goes on."""

import asyncio
import socket
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from brokers import open_broker
from device.in_memory import PLAN, Federation
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from broker_server.server import Server
from edge_client.errors import EnvironmentFault
from edge_client.offload import into
from edge_client.transport.base import Settings
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector
from sim.metrics import Metrics, served

Figures = dict[tuple[str, frozenset[str]], float]


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def scrape(port: int) -> Figures:
    """Every sample by its name and the values of its labels."""

    def page() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return answer.read().decode()

    families = text_string_to_metric_families(await asyncio.to_thread(page))
    return {(s.name, frozenset(s.labels.values())): s.value for family in families for s in family.samples}


def figure(found: Figures, name: str, *labels: str) -> float:
    return found[name, frozenset(labels)]


async def test_a_run_is_told_while_it_goes_on_and_to_the_last_byte(port: int) -> None:
    federation, seen = Federation(), []
    metrics, aggregate = Metrics(PLAN, federation.told), into(federation.pool)

    async def scraped_first(job: Any) -> Any:
        seen.append(await scrape(port))
        return await aggregate(job)

    federation.server = server = Server(PLAN, federation.method, federation.broker.connect, federation.clock, metrics,
                                        scraped_first)  # fmt: skip
    metrics.watch(server.coordinator.members)
    with served(metrics, "127.0.0.1", port):
        before = await scrape(port)
        assert figure(before, "gca_devices", "online") == figure(before, "gca_rounds_completed_total") == 0
        assert figure(before, "gca_run_info", "tiny", "gca") == 1
        outcome, _ = await federation.run()
        assert outcome.completed
        after = await scrape(port)
    for round, during in enumerate(seen, start=1):
        assert figure(during, "gca_round") == round and figure(during, "gca_rounds_completed_total") == round - 1
        assert figure(during, "gca_devices", "online") == figure(during, "gca_cohort_devices") == 4
        assert figure(during, "gca_uploads_total", "accepted") == 4 * (round - 1)
    assert len(seen) == PLAN.rounds
    assert figure(after, "gca_devices", "online") == 0  # all have said goodbye
    assert figure(after, "gca_rounds_completed_total") == figure(after, "gca_rounds_planned") == PLAN.rounds
    assert figure(after, "gca_uploads_total", "accepted") == 4 * PLAN.rounds
    assert [figure(after, "gca_uploads_total", fate) for fate in ("late", "rejected", "missing")] == [0, 0, 0]
    expected: Counter[tuple[str, str, str]] = Counter()
    for told in (*federation.told.records, *federation.told.closings):
        for tally in (one for sheet in told.tallies.values() for one in sheet):
            expected["payload", tally.direction, tally.kind] += tally.payload_bytes
            expected["message", tally.direction, tally.kind] += tally.message_bytes
    assert expected["payload", "up", "upload"] == PLAN.rounds * 4 * 20 * 3 * 4  # devices, codes, width, FP32
    for labels, count in expected.items():
        assert figure(after, "gca_bytes_total", *labels) == count
    assert figure(after, "gca_round_seconds_count", "collect") == PLAN.rounds
    assert figure(after, "gca_device_seconds_count", "alignment") == 4 * PLAN.rounds


async def test_no_device_adds_a_line_to_the_page(port: int) -> None:
    federation = Federation()
    metrics = Metrics(PLAN, federation.told)
    federation.server = Server(PLAN, federation.method, federation.broker.connect, federation.clock, metrics,
                               into(federation.pool))  # fmt: skip
    await federation.run()
    (report, *_) = federation.told.telemetry
    with served(metrics, "127.0.0.1", port):
        before = await scrape(port)
        for number in range(3):
            odd = replace(report, spent_s={f"stage-{number}": 1.0, "upload": float("nan"), "wait": -1.0})
            metrics.observe(odd, 0.0)
        assert await scrape(port) == before


async def test_a_port_in_use_is_told(port: int) -> None:
    metrics = Metrics(PLAN, Federation().told)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(EnvironmentFault, match=f"--metrics-port: cannot listen on 127.0.0.1:{port}"):
            with served(metrics, "127.0.0.1", port):
                pass


async def test_the_command_answers_while_it_waits_for_devices(port: int, tmp_path: Path) -> None:
    async with open_broker("embedded") as broker:
        words = ["server", "demo", "--broker", broker.url, "--run", "r", "--metrics-port", str(port)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sim.cli", *words, "--output", str(tmp_path / "study"), stdout=asyncio.subprocess.PIPE
        )
        try:
            found: Figures = {}
            async with asyncio.timeout(60):
                while not found:
                    with suppress(URLError):
                        found = await scrape(port)
                    await asyncio.sleep(0.1)
                async with connector(endpoint(broker.url))(Settings("eye")) as eye:
                    await eye.subscribe("gca/v1/r/round")
                    await anext(eye.messages())
        finally:
            process.kill()
            await process.wait()
    assert figure(found, "gca_run_info", "r", "gca") == 1 and figure(found, "gca_devices", "away") == 0
