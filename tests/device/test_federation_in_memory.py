"""Server and devices together in one process, with connections cut at every kind of moment."""

import asyncio
import random

import numpy as np
import pytest
from device.in_memory import PLAN, Federation

from edge_client.model.trainer import ModelState


def fingerprint(states: dict[str, ModelState]) -> dict[str, bytes]:
    return {name: state.parameters.tobytes() for name, state in sorted(states.items())}


async def undisturbed() -> dict[str, bytes]:
    outcome, states = await Federation().run()
    assert outcome.completed
    return fingerprint(states)


async def test_all_rounds_are_run_and_every_device_is_told() -> None:
    federation = Federation()
    outcome, states = await federation.run()
    assert (outcome.completed, outcome.rounds, outcome.reason) == (True, PLAN.rounds, "")
    assert [r.accepted for r in federation.told.records] == [("a", "b", "c", "d")] * PLAN.rounds
    assert all(np.isfinite(state.parameters).all() for state in states.values())
    by_device = [t.outcome for t in federation.reports if t.device == "a"]
    assert by_device == ["completed"] * PLAN.rounds + ["idle"]
    assert [c.round for c in federation.told.closings] == [PLAN.rounds]


async def test_nothing_is_left_on_the_broker_but_the_end() -> None:
    federation = Federation()
    await federation.run()
    assert list(federation.broker.retained) == ["gca/v1/tiny/round"]


async def test_each_device_joins_once() -> None:
    federation = Federation()
    await federation.run(server_first=True)
    joins = [m for m in federation.broker.seen if "/join/" in m.topic]
    assert len(joins) == 4


@pytest.mark.parametrize("order", ["dcba", "bdac"])
async def test_the_order_of_start_changes_nothing(order: str) -> None:
    _, states = await Federation().run(order)
    assert fingerprint(states) == await undisturbed()


@pytest.mark.parametrize("seed", range(25))
async def test_connections_cut_at_random_change_nothing(seed: int) -> None:
    federation, chance = Federation(), random.Random(seed)
    cuts = 0

    def faults(client: str, topic: str) -> str | None:
        nonlocal cuts
        if cuts < 15 and chance.random() < 0.04:
            cuts += 1
            return chance.choice(["cut before", "cut after"])
        return None

    async def cut_anyone() -> None:
        for _ in range(10):
            await asyncio.sleep(chance.random() * 0.03)
            if names := federation.broker.online():
                federation.broker.cut(chance.choice(names))

    federation.broker.faults = faults  # type: ignore[assignment]
    outcome, states = await federation.run(also=cut_anyone())
    assert outcome.completed, (outcome, federation.told.notes)
    assert [r.accepted for r in federation.told.records] == [("a", "b", "c", "d")] * PLAN.rounds
    assert fingerprint(states) == await undisturbed()
