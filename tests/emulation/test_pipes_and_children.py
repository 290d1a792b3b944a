"""Pipes between processes, and what becomes of a run whose parts fail around them."""

import asyncio
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from end_to_end_tools import gca

from sim.emulation.pipe import DeviceDone, DeviceLog, FromDevice, Pipe
from sim.emulation.processes import Child, fork_server, stop


def pair() -> tuple[Pipe[FromDevice], Pipe[FromDevice]]:
    ours, theirs = multiprocessing.Pipe()
    return Pipe(ours, FromDevice), Pipe(theirs, FromDevice)


@pytest.mark.parametrize("error", [OSError("disk is full"), EOFError(), ValueError("a bug")])
async def test_a_callback_that_fails_does_not_end_the_peer(error: Exception) -> None:
    ours, theirs = pair()
    heard: list[FromDevice] = []
    ended, failures = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))

    def hear(message: FromDevice) -> None:
        heard.append(message)
        if len(heard) == 1:
            raise error

    ours.listen(hear, ended.set)
    theirs.send(DeviceLog("one"))
    theirs.send(DeviceLog("two"))
    async with asyncio.timeout(5):
        while len(heard) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not ended.is_set() and failures == [error]
    theirs.send(DeviceDone())
    theirs.close()
    async with asyncio.timeout(5):
        await ended.wait()
    assert heard == [DeviceLog("one"), DeviceLog("two"), DeviceDone()]  # all was heard before the end


def test_sending_to_nobody_and_from_a_closed_end_is_no_error() -> None:
    ours, theirs = pair()
    theirs.close()
    ours.send(DeviceDone())
    theirs.send(DeviceDone())


def lingers(spec: bytes, connection) -> None:
    """A child that closes its pipe long before it ends."""
    connection.close()
    time.sleep(0.5)
    os._exit(3)


async def test_a_child_that_lingers_after_its_pipe_holds_nobody_up() -> None:
    child: Child[FromDevice] = Child(fork_server(), "lingering", lingers, DeviceDone(), FromDevice)
    beats, closed = 0, asyncio.Event()
    try:
        child.pipe.listen(lambda told: None, closed.set)
        async with asyncio.timeout(20):
            await closed.wait()
            ending = asyncio.ensure_future(child.ended())
            while not ending.done():
                await asyncio.sleep(0.02)
                beats += 1
        assert ending.result() == 3 and beats > 5
    finally:
        stop([child])


def test_the_traceback_of_a_device_is_shown_with_debug_alone(tmp_path: Path) -> None:
    """The cause is in another process; what it said of it must not be lost on the way."""
    words = ("simulate", "demo", "--link", "none", "--devices", "1", "--set", "training.upload_fraction=0.002")
    told = [gca(*words, *debug, "--output", str(tmp_path / f"{len(debug)}")) for debug in ((), ("--debug",))]
    assert [done.returncode for done in told] == [1, 1]
    plain, debugged = (done.stderr for done in told)
    assert "Traceback" not in plain and "in before_upload" in debugged
    assert plain.splitlines()[-1] == debugged.splitlines()[-1]
