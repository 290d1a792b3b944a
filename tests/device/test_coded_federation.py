"""Whole federations whose arrays travel in codecs."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from device.in_memory import PLAN, SPEC, Federation

from broker_server.methods.base import ServerMethod
from broker_server.methods.coded import coded
from broker_server.methods.fedavg import FedAvgServer
from broker_server.methods.gca import GcaServer
from edge_client.codecs import codec_named
from edge_client.methods.coded import coded as on_device
from edge_client.methods.registry import method


def federation(name: str, up: str, down: str) -> Federation:
    hyper = msgspec.structs.replace(PLAN.hyper, upload_codec=up, broadcast_codec=down, local_epochs=2)
    inner: ServerMethod = FedAvgServer(hyper, PLAN.seed)
    if name == "gca":
        inner = GcaServer(hyper.latent_dim, hyper.upload_fraction, SPEC, PLAN.seed)
    return Federation(replace(PLAN, method=name, hyper=hyper, chunk_size=4096), coded(inner, hyper))


async def models(name: str, up: str, down: str) -> tuple[Federation, dict[str, np.ndarray]]:
    run = federation(name, up, down)
    outcome, states = await run.run()
    assert outcome.completed and all(not record.rejected for record in run.told.records)
    return run, {device: state.parameters for device, state in states.items()}


def sent_up(run: Federation) -> int:
    """Payload bytes of all uploads as the devices counted them."""
    sheets = [tally for told in run.reports for tally in told.tallies]
    return sum(tally.payload_bytes for tally in sheets if (tally.direction, tally.kind) == ("up", "upload"))


@pytest.mark.parametrize("name", ["gca", "fedavg"])
async def test_compression_alone_changes_no_bit(name: str) -> None:
    _, plain = await models(name, "float32", "float32")
    _, packed = await models(name, "float32+zstd", "float32+zstd")
    assert all(plain[device].tobytes() == packed[device].tobytes() for device in plain)


@pytest.mark.parametrize("name", ["gca", "fedavg"])
async def test_half_precision_halves_what_goes_up_and_stays_close(name: str) -> None:
    full, plain = await models(name, "float32", "float32")
    half, packed = await models(name, "float16", "float32")
    assert sent_up(half) * 2 == sent_up(full)
    for device in plain:
        distance = np.linalg.norm(packed[device] - plain[device])
        assert 0 < distance < 0.02 * np.linalg.norm(plain[device])


async def test_after_a_lossy_broadcast_server_and_devices_hold_the_same_model() -> None:
    run, states = await models("fedavg", "float32", "int8")
    last = run.told.checkpoints[-1]["parameters"]
    assert all(state.tobytes() == last.tobytes() for state in states.values())


async def test_both_ends_count_the_same_bytes() -> None:
    run, _ = await models("gca", "int8+zstd", "float16+zstd")
    received = sum(
        t.payload_bytes for record in run.told.records for sheet in record.tallies.values() for t in sheet
        if (t.direction, t.kind) == ("up", "upload")
    )  # fmt: skip
    assert received == sent_up(run) > 0


def test_the_plain_codec_is_no_wrapper_at_all() -> None:
    assert on_device(method("gca"), PLAN.hyper) is method("gca")
    assert codec_named("float32").stages == []
