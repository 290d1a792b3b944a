"""Another device's credentials, topic, run or round never get a byte counted or a model changed, on both brokers.

In every round, while the server collects uploads, a device that is known to the broker but is no part of the run does
what it can to the others; the run ends with the bits and bytes of one that was left in peace.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from brokers import open_broker
from device.in_memory import HYPER, PLAN, SPEC, WIDTH, Told, records_of
from trust.credentials import WAYS, Guarded, guarded

from broker_server.methods.gca import GcaServer
from broker_server.rounds import rivals
from broker_server.server import Server
from edge_client.clock import RealClock
from edge_client.conversation.identity import Identity
from edge_client.conversation.session import Session
from edge_client.device import Device, live
from edge_client.errors import EnvironmentFault, GcaError
from edge_client.offload import into
from edge_client.protocol import topics
from edge_client.protocol.codec import encode
from edge_client.protocol.messages import SERVER, Chunk, Join, Presence, Probe, RoundState, Telemetry
from edge_client.seeds import stream
from edge_client.transport.base import Connect, Incoming, Settings
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector

RUN = replace(PLAN, devices=2, minimum_devices=2, patience_s=30.0, rubbish_limit=10**6)
"""What a device says too much in its own name excludes it; that is `test_rubbish.py`'s matter."""
FRAMES = {"run": RUN.name, "seq": 10**6}
Attack = Callable[[int], Awaitable[None]]


@dataclass
class Result:
    """What a run came to: the models and, for each device, what was counted of its uploads."""

    models: dict[str, bytes]
    participants: list[tuple[str, ...]]
    uploads: dict[str, list[tuple[int, int]]]
    strangers: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)


async def federation(connect_as: Callable[[str], Connect], attack: Attack | None = None) -> Result:
    """Run devices a and b to the end; `attack(round)` is over before b may train in that round."""
    told, models = Told(), {}
    method = GcaServer(HYPER.latent_dim, HYPER.upload_fraction, SPEC, RUN.seed)
    with ThreadPoolExecutor(1) as pool:
        train: Any = into(pool)
        server = Server(RUN, method, connect_as(SERVER), RealClock(), told, train)

        async def after_the_attack(job: Any, *arguments: Any) -> Any:
            if attack is not None:
                await attack(server.coordinator.collection.round if server.coordinator.collection else 0)
            return await train(job, *arguments)

        async def take_part(name: str) -> None:
            records = records_of(name)
            who = Identity(RUN.run, name, name * 8, len(records.samples), WIDTH, chunk_size=64)
            session = Session(who, connect_as(name), RealClock(), stream(1, "backoff", 0, name), lambda _: None)
            offload = after_the_attack if name == "b" else train
            device = Device(records, session, RealClock(), offload, session.report, "never")
            models[name] = (await live(device)).parameters.tobytes()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve())
            await server.listening.wait()
            group.create_task(take_part("a"))
            group.create_task(take_part("b"))
        assert serving.result().completed, told.notes
    result = Result(models, [record.participants for record in told.records], {"a": [], "b": []})
    for record in told.records:
        for device, tallies in record.tallies.items():
            counted = [(t.message_bytes, t.payload_bytes) for t in tallies if (t.direction, t.kind) == ("up", "upload")]
            if device in result.uploads:
                result.uploads[device] += counted
            else:
                result.strangers.add(device)
        for name, count in record.counts.items():
            result.counts[name] = result.counts.get(name, 0) + count
    return result


@pytest.fixture(scope="module")
def peaceful() -> Result:
    async def run() -> Result:
        async with open_broker("embedded") as broker:
            return await federation(lambda _: connector(endpoint(broker.url)))

    return asyncio.run(run())


@pytest.fixture(params=WAYS)
async def fort(broker_kind: str, request: pytest.FixtureRequest, certs: Any) -> AsyncIterator[Guarded]:
    async with guarded(broker_kind, request.param, certs) as running:
        yield running


@asynccontextmanager
async def overheard(fort: Guarded) -> AsyncIterator[list[Incoming]]:
    """All uploads of the run, as only the server's credentials let one hear them."""
    heard: list[Incoming] = []
    async with fort.connect_as(SERVER)(Settings("ear")) as transport:
        await transport.subscribe(f"gca/v1/{RUN.run}/up/#")

        async def listen() -> None:
            async for message in transport.messages():
                heard.append(message)
                transport.acknowledge(message)

        listening = asyncio.ensure_future(listen())
        try:
            yield heard
        finally:
            listening.cancel()


async def say(connect: Connect, topic: str, payload: bytes, *, retain: bool = False) -> None:
    """Publish on a connection of its own: a broker may end one that does what it must not."""
    with suppress(GcaError):
        async with connect(Settings("mallory-1")) as transport:
            await transport.publish(topic, payload, retain=retain)


def forged(round: int) -> dict[str, bytes]:
    """What would hurt if it arrived: topic -> message, under the names of a and of the server."""
    run, head = RUN.run, {"run": RUN.name, "seq": 10**6, "device": "a"}
    rubbish = Chunk(**head, round=round, index=0, chunks=1, size=4, digest=b"12345678", data=b"evil")
    gone = Presence(run=run, seq=10**6, device="a", round=0, state="failed", instance="a" * 8)
    anew = Join(run=run, seq=10**6, device="a", round=0, instance="0" * 8, samples=10**6, input_dim=WIDTH)
    lies = Telemetry(**head, round=round, outcome="completed", spent_s={}, tallies=(), evaluations=(), ignored={},
                     state_sha256="")  # fmt: skip
    end = RoundState(run=RUN.name, seq=10**6, device=SERVER, round=round, state="ended", reason="mallory says so")
    return {
        topics.upload(run, "a", round, 0): encode(rubbish),
        topics.presence(run, "a"): encode(gone),
        topics.join(run, "a"): encode(anew),
        topics.telemetry(run, "a"): encode(lies),
        topics.round_state(run): encode(end),
        topics.broadcast(run, round, 0): encode(rubbish),
        topics.down(run, "a", "reject"): b"rubbish",
        topics.catch_up(run, "a", round, 0): encode(rubbish),
    }


def own(topic: str) -> str:
    """The same topic, but where mallory may write."""
    return topic.replace("/a", "/mallory", 1) if "/up/a" in topic or topic.endswith("/a") else topic


async def test_an_intruder_changes_no_model_and_no_count(fort: Guarded, peaceful: Result) -> None:
    mallory = fort.connect_as("mallory")
    attacks: list[int] = []
    async with overheard(fort) as heard:

        async def attack(round: int) -> None:
            attacks.append(round)
            for topic, payload in forged(max(round, 1)).items():
                await say(mallory, topic, payload)  # on another's topic
                await say(mallory, own(topic), payload)  # on its own, with another's name inside
            for message in [m for m in heard if "/up/a/" in m.topic][-2:]:  # an old round again
                await say(mallory, message.topic, message.payload)
                await say(mallory, own(message.topic), message.payload)
            await say(mallory, f"gca/v1/another/up/mallory/{round}/0", b"of another run")
            await say(mallory, topics.presence(RUN.run, "mallory"), b"", retain=True)

        found = await federation(fort.connect_as, attack)
    assert set(attacks) >= {1, 2, 3}
    assert found.models == peaceful.models
    assert found.participants == [("a", "b")] * RUN.rounds == peaceful.participants
    assert found.uploads == peaceful.uploads
    assert found.strangers <= {"mallory"}
    assert found.counts["malformed"] >= 3 * len(set(attacks) - {0})  # what mallory may say is heard, and refused


async def test_a_device_that_replays_its_old_round_changes_nothing(fort: Guarded, peaceful: Result) -> None:
    async with overheard(fort) as heard:

        async def attack(round: int) -> None:
            for message in [m for m in heard if f"/up/b/{round - 1}/" in m.topic]:
                await say(fort.connect_as("b"), message.topic, message.payload)
                current = message.topic.replace(f"/b/{round - 1}/", f"/b/{round}/")  # the topic says this round
                await say(fort.connect_as("b"), current, message.payload)

        found = await federation(fort.connect_as, attack)
    assert found.models == peaceful.models
    assert [payload for _, payload in found.uploads["b"]] == [payload for _, payload in peaceful.uploads["b"]]
    assert found.participants == peaceful.participants


async def test_nobody_hears_what_is_anothers(fort: Guarded) -> None:
    """The embedded broker refuses the subscription; mosquitto grants it and delivers nothing."""
    wanted = {"gca/v1/tiny/dn/a/#": "dn/a/accept", "gca/v1/tiny/up/#": "up/a/1/0", "gca/v1/#": "met/a", "#": "join/a"}
    async with fort.connect_as("mallory")(Settings("mallory")) as spy, fort.connect_as(SERVER)(Settings("s")) as server:
        for filter_ in wanted:
            with suppress(EnvironmentFault):
                await spy.subscribe(filter_)
                assert fort.broker.kind == "mosquitto", filter_
        await spy.subscribe("gca/v1/tiny/dn/mallory/#")
        for topic in wanted.values():
            await server.publish(f"gca/v1/tiny/{topic}", b"not for mallory")
        await server.publish(topics.down("tiny", "mallory", "accept"), b"for mallory")
        async with asyncio.timeout(20):
            heard = await anext(spy.messages())
    assert (heard.topic, heard.payload) == (topics.down("tiny", "mallory", "accept"), b"for mallory")


async def test_only_a_server_can_pass_for_another_server(fort: Guarded) -> None:
    """What would end a run or have it announced anew: the server hears nothing of it but what a server says."""
    run = RUN.run
    further = encode(RoundState(run=f"{run}.00000001", seq=0, device=SERVER, round=99, state="open"))
    question = encode(Probe(run=f"{run}.00000001", seq=0, device=SERVER, instance="00000001"))
    async with fort.connect_as(SERVER)(Settings("s")) as server:
        await server.subscribe(*rivals.filters(run))
        for topic in rivals.filters(run):
            for payload in (further, question):
                for retain in (False, True):
                    await say(fort.connect_as("mallory"), topic, payload, retain=retain)
                    await say(fort.connect_as("a"), topic, payload, retain=retain)
        async with fort.connect_as(SERVER)(Settings("t")) as another:
            await another.publish(topics.down(run, SERVER, "probe"), b"of a server")
        async with asyncio.timeout(20):
            assert (await anext(server.messages())).payload == b"of a server"


async def test_credentials_are_no_use_under_another_name(fort: Guarded) -> None:
    """A password belongs to its name; beside a certificate, a name that is typed in counts for nothing."""
    if fort.certs is None:
        for stolen in ("a", SERVER, "nobody"):
            with pytest.raises(EnvironmentFault, match="GCA_PASSWORD"):
                async with fort.connect_as("mallory", user=stolen)(Settings("x")):
                    pass
    else:
        async with fort.connect_as(SERVER)(Settings("s")) as server:
            await server.subscribe("gca/v1/tiny/up/#")
            await say(fort.connect_as("mallory", user="a"), "gca/v1/tiny/up/a/1/0", b"forged")
            await say(fort.connect_as("mallory", user="a"), "gca/v1/tiny/up/mallory/1/0", b"own")
            async with asyncio.timeout(20):
                assert (await anext(server.messages())).payload == b"own"
