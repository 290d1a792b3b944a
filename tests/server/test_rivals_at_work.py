"""Two servers of one run name on one broker: one goes on, the other ends with one line; a dead one stops nobody."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from brokers import RunningBroker
from device.in_memory import PLAN, Federation
from server.driver import state

from broker_server.plan import RunPlan
from broker_server.rounds.rivals import make_sure_of_being_alone
from broker_server.server import Server
from edge_client.clock import RealClock
from edge_client.device import live
from edge_client.errors import ConfigError
from edge_client.offload import into
from edge_client.protocol import topics
from edge_client.protocol.codec import decode, encode
from edge_client.protocol.messages import Presence, RoundState
from edge_client.transport.base import Settings
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector


def rival(federation: Federation, **fields: object) -> Server:
    other = replace(federation.plan, **{"incarnation": "00000001"} | fields)  # type: ignore[arg-type]
    return Server(other, federation.method, federation.broker.connect, federation.clock, federation.told,
                  into(federation.pool))  # fmt: skip


async def test_a_server_that_takes_another_ones_place_unheard_gives_it_back() -> None:
    """It did not ask first, or was not heard: the broker has both throw each other off. The one that is further goes on
    to its end, and nobody loses anything."""
    federation = Federation(replace(PLAN, rounds=60))
    errors: list[BaseException] = []

    async def intrude() -> None:
        while not federation.told.records:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        try:
            await rival(federation).serve()
        except ConfigError as error:
            errors.append(error)

    outcome, states = await federation.run(also=intrude())
    assert outcome.completed and outcome.rounds == 60 and states.keys() == set("abcd")
    assert all(record.accepted == tuple("abcd") for record in federation.told.records)
    assert "another server coordinates it" in str(errors[0])


async def test_of_two_that_begin_at_one_moment_one_gives_way() -> None:
    federation = Federation()
    servers = [federation.server, rival(federation)]
    serving = [asyncio.ensure_future(server.serve()) for server in servers]
    async with asyncio.timeout(15):
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        assert [task.done() for task in serving] == [True, False]  # the smaller incarnation goes on
        with pytest.raises(ConfigError, match="another server coordinates it on this broker and waits for devices"):
            await serving[0]
        await asyncio.gather(*(live(federation.device(name)) for name in "abcd"))
        outcome = await serving[1]
    assert outcome.completed


async def test_of_two_that_go_on_with_copies_of_one_study_no_two_are_left() -> None:
    """Both have the run's very name. Who finds announcements of it that are not its own ends, and nobody is told that
    the run has."""
    federation = Federation()
    servers = [federation.server, rival(federation, incarnation=PLAN.incarnation, instance="11111111")]
    serving = [asyncio.ensure_future(server.serve()) for server in servers]
    async with asyncio.timeout(15):
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
    ended = [task for task in serving if task.done()]
    for task in ended:
        with pytest.raises(ConfigError, match="another server goes on with it on this broker"):
            await task
    states = [decode(one.payload, RoundState) for one in federation.broker.seen if one.topic.endswith("/round")]
    assert {one.run for one in states} == {federation.plan.name} and {one.state for one in states} == {"waiting"}
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@pytest.mark.parametrize("left", ["open", "ended", None])
async def test_what_a_dead_server_left_behind_locks_nobody_out(
    broker: RunningBroker, left: str | None, monkeypatch
) -> None:
    monkeypatch.setattr("broker_server.rounds.rivals.ANSWER_S", 0.5)
    connect = connector(endpoint(broker.url))
    if left is not None:
        async with connect(Settings("grave")) as transport:
            await transport.publish(topics.round_state("tiny"), encode(state("tiny.00000001", 3, left)), retain=True)
    await make_sure_of_being_alone(PLAN, connect, RealClock(), "x")


async def test_a_server_that_is_alive_is_found(broker: RunningBroker) -> None:
    connect, told = connector(endpoint(broker.url)), Federation().told
    first = Server(PLAN, Federation().method, connect, RealClock(), told, into(Federation().pool))
    serving = asyncio.ensure_future(first.serve())
    try:
        await first.listening.wait()
        second: RunPlan = replace(PLAN, incarnation="00000001")
        for _ in range(2):
            with pytest.raises(
                ConfigError, match=r"run 'tiny': another server .* on mqtt://here and waits for devices;"
            ):
                await make_sure_of_being_alone(second, connect, RealClock(), "mqtt://here")
        twin = replace(PLAN, instance="11111111")
        with pytest.raises(ConfigError, match="another server goes on with it on mqtt://here, from this study or a co"):
            await make_sure_of_being_alone(twin, connect, RealClock(), "mqtt://here")
        assert not any("next try" in note for note in told.notes)  # it has lost no connection over this
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_whoever_comes_while_a_device_still_aligns_for_the_last_run_is_told_to_try_again() -> None:
    federation, hold = Federation(replace(PLAN, rounds=1, devices=2, minimum_devices=2)), asyncio.Event()
    server, work = federation.server, into(federation.pool)
    later = replace(federation.plan, incarnation="00000001")

    async def until_the_run_has_ended(job: Any, *arguments: Any) -> Any:
        done = await work(job, *arguments)
        if server.coordinator.collection is not None and server.coordinator.collection.accepted == set("ab"):
            await hold.wait()
        return done

    serving = asyncio.ensure_future(server.serve())
    devices = [asyncio.ensure_future(live(federation.device("a"))),
               asyncio.ensure_future(live(federation.device("b", offload=until_the_run_has_ended)))]  # fmt: skip
    async with asyncio.timeout(30):
        await devices[0]
        assert server.coordinator.outcome is not None and not serving.done()
        with pytest.raises(
            ConfigError, match=r"'tiny': the server of the run before it is still ending on x, .* again"
        ):
            await make_sure_of_being_alone(later, federation.broker.connect, RealClock(), "x")
        hold.set()
        assert (await serving).completed
        await devices[1]
    async with asyncio.timeout(4):  # and nobody is locked out, nor waits
        await make_sure_of_being_alone(later, federation.broker.connect, RealClock(), "x")
    assert not [note for note in federation.told.notes if "next try" in note]


class HandClock(RealClock):
    """A clock on which waiting ends when the test says so."""

    def __init__(self) -> None:
        self.waited_for, self.over = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.waited_for.set()
        await self.over.wait()


@pytest.mark.parametrize("presence", ["online", "left"])
async def test_an_end_that_is_long_past_costs_an_answers_time_only_where_a_device_is_there(
    presence: str,
) -> None:
    federation, clock = Federation(), HandClock()
    device = Presence(run="tiny", device="a", seq=0, state=presence, instance="00000000")  # type: ignore[arg-type]
    async with federation.broker.connect(Settings("grave")) as transport:
        await transport.publish(topics.round_state("tiny"), encode(state("tiny.00000001", 3, "ended")), retain=True)
        await transport.publish(topics.presence("tiny", "a"), encode(device), retain=True)
    asking = asyncio.ensure_future(make_sure_of_being_alone(PLAN, federation.broker.connect, clock, "x"))
    await clock.waited_for.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert asking.done() == (presence == "left")
    clock.over.set()
    await asking


async def test_a_run_goes_on_where_its_server_died_without_asking_the_dead(broker: RunningBroker) -> None:
    connect = connector(endpoint(broker.url))
    async with connect(Settings("grave")) as transport:
        await transport.publish(topics.round_state("tiny"), encode(state(PLAN.name, 3)), retain=True)
    async with asyncio.timeout(4):  # less than it would wait for an answer
        await make_sure_of_being_alone(replace(PLAN, life=1), connect, RealClock(), "x")
