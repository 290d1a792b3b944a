"""A device that no server answers: it waits, as its server may be yet to come, but a person is told."""

import asyncio
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from brokers import open_broker
from device.in_memory import PLAN, Federation
from end_to_end_tools import HANGS_S

from edge_client.conversation.session import Session
from edge_client.conversation.silence import AGAIN_S, FIRST_S, tell_of_silence
from edge_client.protocol import topics
from edge_client.protocol.codec import encode
from edge_client.protocol.messages import SERVER, RoundState


class Steps:
    """A clock whose sleepers wake when the test says so."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.wake = asyncio.Semaphore(0)

    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.wake.acquire()

    async def step(self) -> None:
        self.wake.release()
        for _ in range(10):
            await asyncio.sleep(0)


@asynccontextmanager
async def waiting(session: Session, clock: Steps, said: list[str]):
    async with session.connection():
        telling = asyncio.create_task(tell_of_silence(session, clock, "mqtt://h:1883", said.append))
        for _ in range(50):
            await asyncio.sleep(0)
        yield telling
        telling.cancel()


async def test_of_a_name_that_nobody_has_heard_a_person_is_told_once_and_then_rarely() -> None:
    federation, clock, said = Federation(), Steps(), []
    async with waiting(federation.session("a"), clock, said):
        assert clock.slept == [FIRST_S] and said == []
        await clock.step()
        told = "no server of run 'tiny' has been heard on mqtt://h:1883 yet: waiting for one; is the name right?"
        assert said == [told] and clock.slept == [FIRST_S, AGAIN_S]
        await clock.step()
        assert said == [told, told] and clock.slept == [FIRST_S, AGAIN_S, AGAIN_S]


async def test_of_a_run_that_is_over_it_is_told_that_nobody_answers() -> None:
    federation, clock, said = Federation(), Steps(), []
    old = RoundState(run="tiny.00000000", round=9, device=SERVER, seq=9, state="ended", reason="completed")
    federation.broker.retained[topics.round_state("tiny")] = encode(old)
    async with waiting(federation.session("a"), clock, said):
        await clock.step()
        assert said == ["run 'tiny' has been heard of on mqtt://h:1883, but no server of it answers: waiting for one"]


async def test_without_a_connection_the_session_has_the_word() -> None:
    federation, clock, said = Federation(), Steps(), []
    federation.broker.running = False
    async with waiting(federation.session("a"), clock, said):
        await clock.step()
        assert said == [] and clock.slept == [FIRST_S, FIRST_S]
        assert any("the broker is away" in line for line in federation.logs)


async def test_once_a_server_has_answered_there_is_nothing_to_tell() -> None:
    federation, clock, said = Federation(PLAN), Steps(), []
    serving = asyncio.create_task(federation.server.serve())
    await federation.broker.heard.wait()
    session = federation.session("a")
    async with waiting(session, clock, said) as telling:
        async with asyncio.timeout(5):
            await session.welcome()
        await clock.step()
        assert telling.done() and said == []
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


@pytest.mark.mosquitto
async def test_the_command_says_so_at_once_through_a_pipe_and_goes_on_waiting(tmp_path: Path) -> None:
    """With a shorter patience than people have. Its output is not a terminal, as under systemd."""
    np.savez(tmp_path / "records.npz", samples=np.random.default_rng(1).normal(size=(60, 5)))
    begin = "from edge_client.conversation import silence; silence.FIRST_S = 0.3"
    begin += "; from edge_client.__main__ import main; main()"
    async with open_broker("mosquitto") as broker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", begin, "--broker", broker.url, "--run", "shelff", "--id", "pi-1",
            "--data", str(tmp_path / "records.npz"), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(HANGS_S):
            lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert "60 records of 5 features" in lines[0]
        assert lines[1] == f"no server of run 'shelff' has been heard on {broker.url} yet: waiting for one; is the " \
                           "name right?\n"  # fmt: skip
        assert process.returncode is None
        process.terminate()
        await process.wait()
