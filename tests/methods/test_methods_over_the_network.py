"""Every method with the real device, server and training over the broker in memory: identities, bytes, absences."""

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from device.in_memory import PLAN, SPEED
from methods.runs import HYPER, METHODS, SHARING, TRAINER, P, Run, bits, context, server_half, settled
from msgspec.structs import replace as with_fields

from edge_client.device import live
from edge_client.methods.fedavg import FedAvg
from edge_client.methods.registry import _METHODS
from edge_client.methods.registry import method as device_half
from edge_client.methods.single import Single
from edge_client.model.trainer import ModelState
from edge_client.protocol.messages import Telemetry

UNEQUAL = {"a": 31, "b": 40, "c": 33}
"""Sizes that make 4 batches of 10 each: equal steps, unequal weights."""


# ---- identities, over three rounds and to the bit ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hyper", "privacy"),
    [
        ("fednova", HYPER, {}),
        ("fedprox", with_fields(HYPER, proximal_mu=0.0), {}),
        ("dp_fedavg", HYPER, {"clip_norm": math.inf, "noise_multiplier": 0.0}),
    ],
)
async def test_what_a_variant_adds_set_to_nothing_leaves_fedavg(name, hyper, privacy: Mapping[str, float]) -> None:
    expected = await Run("fedavg", UNEQUAL).states()
    assert bits(await Run(name, UNEQUAL, hyper=hyper, privacy=privacy).states()) == bits(expected)


async def test_the_variants_are_not_fedavg_otherwise() -> None:
    """Else the identities would hold for methods that do nothing. FedNova needs unequal steps to differ."""
    shards = {"a": 40, "b": 11}
    found = {name: bits(await Run(name, shards).states())["a"] for name in SHARING}
    assert len(set(found.values())) == len(SHARING)


@pytest.mark.parametrize("name", ["fedavg", "fednova"])
@pytest.mark.parametrize("optimizer", ["kept", "reset"])
async def test_one_client_alone_is_single(name: str, optimizer) -> None:
    hyper = with_fields(HYPER, optimizer=optimizer)
    state = Single().initial(context("a", 0, hyper))
    for round in range(1, PLAN.rounds + 1):
        state = Single().round(state, context("a", round, hyper))
    found = (await Run(name, "a", hyper=hyper).states())["a"]
    assert found.parameters.tobytes() == state.parameters.tobytes()
    assert found.first_moment.tobytes() == state.first_moment.tobytes()
    steps = 2 * 4 if optimizer == "reset" else 3 * 2 * 4
    assert (found.encoder_steps, found.epochs) == (state.encoder_steps, state.epochs) == (steps, 3 * 2)


# ---- every method --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
async def test_every_method_runs_to_the_end_and_is_judged_in_its_phases(name: str) -> None:
    run = Run(name)
    states = await run.states()
    epochs = device_half(name).epochs(HYPER)
    assert epochs == ((1, 1) if name == "gca" else (2, 0))
    phases = [("recon", 1), ("align", 1)] if name == "gca" else [("recon", 2), ("global", 1)]
    for told in (t for t in run.reports if t.round <= PLAN.rounds and t.outcome != "idle"):
        assert told.outcome == "completed"
        assert [(e.phase, e.epoch) for e in told.evaluations] == phases  # evaluated once a phase
        assert set(told.spent_s) == {*device_half(name).stages, "upload", "wait", "evaluate"}
    if name in SHARING:
        last = run.spy.broadcasts[PLAN.rounds]["parameters"]
        assert all(state.parameters.tobytes() == last.tobytes() for state in states.values())
        assert not np.array_equal(last, TRAINER.initial(np.random.default_rng()).parameters)


@pytest.mark.parametrize("name", SHARING)
async def test_the_order_of_start_and_cut_connections_change_nothing(name: str) -> None:
    expected = bits(await Run(name, UNEQUAL).states())
    for seed in range(4):
        run, chance, cuts = Run(name, dict(reversed(UNEQUAL.items()))), random.Random(seed), 0

        def faults(client: str, topic: str, chance=chance) -> str | None:
            nonlocal cuts
            if cuts < 12 and chance.random() < 0.03:
                cuts += 1
                return chance.choice(["cut before", "cut after"])
            return None

        run.broker.faults = faults  # type: ignore[assignment]
        assert bits(await run.states()) == expected


@pytest.mark.parametrize("name", METHODS)
def test_both_halves_agree_on_who_hears_a_broadcast(name: str) -> None:
    assert device_half(name).hears_all_broadcasts == server_half(name).broadcasts_to_all == (name != "gca")


# ---- partial participation -----------------------------------------------------------------------------------------


def moved(reports: list[Telemetry], round: int, kind: str) -> int:
    """The payload bytes of one kind that the devices counted for a round."""
    return sum(t.payload_bytes for told in reports if told.round == round for t in told.tallies if t.kind == kind)


@pytest.mark.parametrize("name", SHARING)
async def test_half_the_devices_upload_but_all_download_and_start_from_the_same_model(name: str) -> None:
    run = Run(name, participation=0.5, rounds=5)
    states = await run.states()
    assert len(set(bits(states).values())) == 1
    for round in range(1, 6):
        assert len(run.spy.uploads[round]) == 2
        assert moved(run.reports, round, "upload") == 2 * P * 4
        assert moved(run.reports, round, "broadcast") == 4 * P * 4
    server = dict.fromkeys(("upload", "broadcast"), 0)
    for record in run.told.records:
        for sheet in record.tallies.values():
            for tally in sheet:
                if tally.kind in server:
                    server[tally.kind] += tally.payload_bytes
    assert server == {"upload": 5 * 2 * P * 4, "broadcast": 5 * 4 * P * 4}  # sent = received
    idle = [told for told in run.reports if told.outcome == "idle" and told.round <= 5 and told.evaluations]
    assert [[(e.phase, e.epoch) for e in told.evaluations] for told in idle] == [[("global", 1)]] * 10


async def test_with_gca_who_takes_no_part_pays_for_no_broadcast() -> None:
    run = Run("gca", participation=0.5, rounds=4)
    await run.states()
    idle = [told for told in run.reports if told.outcome == "idle" and 1 <= told.round <= 4]
    assert idle and all(t.kind != "broadcast" for told in idle for t in told.tallies)


async def test_a_participant_always_trains_on_the_model_that_the_round_began_with() -> None:
    """Each upload is what two epochs make of the round's model, whoever took part in the rounds before. Adam's
    moments are reset, so that the model is all that an upload depends on."""
    hyper = with_fields(HYPER, optimizer="reset")
    run = Run("fedavg", participation=0.5, rounds=5, hyper=hyper)
    await run.states()
    for round in range(1, 6):
        for device, upload in run.spy.uploads[round].items():
            start = run.spy.broadcasts[round - 1]["parameters"] if round > 1 else None
            assert upload.arrays["parameters"].tobytes() == trained(device, round, start, hyper).tobytes()


def trained(device: str, round: int, start: np.ndarray | None, hyper) -> np.ndarray:
    """What a device uploads that begins the round with these parameters (None: the shared initial ones)."""
    here = context(device, round, hyper)
    state = FedAvg().initial(here)
    state = state if start is None else replace(ModelState.fresh(start.copy()), epochs=state.epochs)
    return FedAvg().before_upload(state, here)[1]["parameters"]


# ---- absences ------------------------------------------------------------------------------------------------------

RESET = with_fields(HYPER, optimizer="reset")


async def test_who_joins_late_fetches_the_model_before_it_trains() -> None:
    run = Run("fedavg", "abc", hyper=RESET, rounds=40, devices=2, minimum_devices=2)
    serving = asyncio.ensure_future(run.server.serve())
    lives = [asyncio.ensure_future(live(run.device(name))) for name in "ab"]
    await settled(lambda: len(run.told.records) >= 2)
    lives.append(asyncio.ensure_future(live(run.device("c"))))
    async with asyncio.timeout(20):
        states = await asyncio.gather(*lives)
        assert (await serving).completed
    first = min(round for round, given in run.spy.uploads.items() if "c" in given)
    assert first > 2
    upload = run.spy.uploads[first]["c"].arrays["parameters"]
    assert upload.tobytes() == trained("c", first, run.spy.broadcasts[first - 1]["parameters"], RESET).tobytes()
    assert len({state.parameters.tobytes() for state in states}) == 1
    (told,) = [told for told in run.reports if told.device == "c" and told.round == first]
    assert told.outcome == "completed" and "catch_up" in told.spent_s
    assert [e.phase for e in told.evaluations] == ["recon", "global"]  # the model fetched belongs to another round


async def test_who_missed_a_broadcast_fetches_it_and_spoils_no_aggregate() -> None:
    """No chunk of round 1's broadcast reaches device b. It must not train round 2 on what it has, but on the model of
    round 1, which the server sends to it alone."""
    run, everything = Run("fedavg", "ab", hyper=RESET, rounds=3), "gca/v1/tiny/bc/+/+"
    publish = run.broker.publish

    def lose(client: str, topic: str, payload: bytes, *, retain: bool) -> None:
        (theirs,) = [one.filters for one in run.broker.sessions.values() if "gca/v1/tiny/dn/b/#" in one.filters] or [
            set()
        ]
        if topic.startswith("gca/v1/tiny/bc/1/"):
            theirs.discard(everything)
            publish(client, topic, payload, retain=retain)
            theirs.add(everything)
        else:
            publish(client, topic, payload, retain=retain)

    run.broker.publish = lose  # type: ignore[method-assign]
    states = await run.states()
    assert any("/dn/b/bc/1/" in seen.topic for seen in run.broker.seen)
    for round in (1, 2, 3):
        start = run.spy.broadcasts[round - 1]["parameters"] if round > 1 else None
        upload = run.spy.uploads[round]["b"].arrays["parameters"]
        assert upload.tobytes() == trained("b", round, start, RESET).tobytes()
    assert len(set(bits(states).values())) == 1


async def test_a_device_without_the_rounds_model_sits_the_round_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device b finds every broadcast unusable: it uploads in round 1, as all know the initial model, and never again;
    the rounds go on with a."""

    class Unable(FedAvg):
        def after_broadcast(self, state, context, broadcast):
            if context.device == "b":
                broadcast = {"parameters": broadcast["parameters"][:-1]}
            return super().after_broadcast(state, context, broadcast)

    monkeypatch.setitem(_METHODS, "fedavg", Unable())
    run = Run("fedavg", "ab", hyper=RESET, rounds=3, deadline_s=0.8 * SPEED)
    await run.states()
    assert [sorted(run.spy.uploads[round]) for round in (1, 2, 3)] == [["a", "b"], ["a"], ["a"]]
    told = [t for t in run.reports if t.device == "b" and t.outcome != "idle"]
    assert [(t.round, t.outcome) for t in told] == [(1, "missed"), (2, "missed"), (3, "missed")]
    assert all("unusable broadcast: parameters must be float32" in t.detail for t in told)
    assert [len(t.evaluations) for t in told] == [1, 0, 0]
