"""The server as a coroutine when something around it fails: what is raised, what is told, and what stays behind."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from device.in_memory import PLAN, SPEED, Federation

from edge_client.device import live
from edge_client.errors import EnvironmentFault

TWO = replace(PLAN, devices=2, minimum_devices=2, rounds=10_000)


class Faulty:
    """The real method, until its aggregation meets a bug in round 2."""

    broadcasts_to_all = False

    def __init__(self, method) -> None:
        self.upload_limit, self.check, self._method = method.upload_limit, method.check, method

    def aggregate(self, round, uploads, previous):
        if round == 2:
            raise ZeroDivisionError("by hand")
        return self._method.aggregate(round, uploads, previous)


async def lives_until_told(federation: Federation, names: str = "ab") -> list[asyncio.Task]:
    lives = [asyncio.ensure_future(live(federation.device(name))) for name in names]
    await asyncio.sleep(0)
    return lives


async def failed(federation: Federation) -> BaseException:
    """Run two devices to the failure of the server; return what it raised. The devices have been told by then."""
    serving = asyncio.ensure_future(federation.server.serve())
    lives = await lives_until_told(federation)
    async with asyncio.timeout(10):
        (raised, *_) = await asyncio.gather(serving, *lives, return_exceptions=True)
    assert [t.device for t in federation.reports[-2:] if t.detail] and all(task.done() for task in lives)
    assert list(federation.broker.retained) == ["gca/v1/tiny/round"]
    return raised


@pytest.mark.parametrize("call", ["record", "opened", "uploaded", "observe", "checkpoint"])
async def test_results_that_cannot_be_written_end_the_run_with_that_error_alone(call: str) -> None:
    """The disk is full; devices are told, in an order in which the end is the last they hear."""
    federation = Federation(TWO)

    def fail(*_: object) -> None:
        raise EnvironmentFault("study.sqlite: disk is full")

    setattr(federation.told, call, fail)
    raised = await failed(federation)
    assert isinstance(raised, EnvironmentFault) and str(raised) == "study.sqlite: disk is full"
    assert federation.told.notes[-1] == "the run ends early: study.sqlite: disk is full"


async def test_a_disk_that_fills_up_with_the_last_round_ends_the_run_too() -> None:
    federation, record = Federation(replace(TWO, rounds=2)), None
    record = federation.told.record

    def fail_at_the_end(one) -> None:
        record(one)
        if one.round == 2:
            raise EnvironmentFault("study.sqlite: disk is full")

    federation.told.record = fail_at_the_end  # type: ignore[method-assign]
    assert isinstance(await failed(federation), EnvironmentFault)


async def test_a_bug_in_the_aggregation_is_raised_as_itself() -> None:
    federation = Federation(TWO, Faulty(Federation(TWO).method))
    assert isinstance(await failed(federation), ZeroDivisionError)
    assert "the run ends early: aggregation of round 2 failed: ZeroDivisionError: by hand" in federation.told.notes


async def test_a_broker_that_refuses_the_server_for_good_is_that_error_alone() -> None:
    federation = Federation(TWO)

    async def refuse(*filters: str) -> None:
        raise EnvironmentFault("the broker refuses the subscription; check its ACL")

    connect = federation.broker.connect

    def refusing(settings):
        opened = connect(settings)

        class Refusing:
            async def __aenter__(self):
                transport = await opened.__aenter__()
                transport.subscribe = refuse
                return transport

            async def __aexit__(self, *error):
                return await opened.__aexit__(*error)

        return Refusing()

    federation.server._connect = refusing
    with pytest.raises(EnvironmentFault, match="check its ACL"):
        async with asyncio.timeout(5):
            await federation.server.serve()


async def test_an_abort_is_told_at_once_and_sweeps_although_it_is_cut_short() -> None:
    """A device never says goodbye; the server is cancelled twice, as by an impatient person."""
    federation = Federation(replace(TWO, patience_s=1000.0))
    serving = asyncio.ensure_future(federation.server.serve())
    lives = await lives_until_told(federation)
    while not federation.told.records:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for task in lives:  # they are gone without a word, and the broker does not notice
        task.cancel()
    federation.broker.faults = lambda client, topic: "swallow" if "/pres/" in topic and client[0] in "ab" else None
    federation.server.abort("by hand")
    assert federation.told.notes[-1] == "the run ends early: by hand"
    for _ in range(2):
        serving.cancel()
        await asyncio.sleep(0.01)
    with suppress(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await serving
    assert list(federation.broker.retained) == ["gca/v1/tiny/round"] and federation.told.closings


async def test_the_clock_runs_until_the_last_goodbye() -> None:
    """What devices do with the last broadcast is part of the run's time."""
    federation = Federation(replace(PLAN, devices=1, minimum_devices=1, rounds=1))
    slow = federation.device("a")
    offload = slow.offload

    async def align_slowly(function, *args, **kwargs):
        if function.__name__ == "take_in":
            await federation.clock.sleep(0.3 * SPEED)
        return await offload(function, *args, **kwargs)

    serving = asyncio.ensure_future(federation.server.serve())
    async with asyncio.timeout(10):
        await live(replace(slow, offload=align_slowly))
        outcome = await serving
    assert outcome.ended_s >= federation.told.records[0].published_s + 0.3 * SPEED
