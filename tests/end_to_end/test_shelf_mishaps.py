"""What happens to a shelf of boards under systemd: their server is started anew under the old name, their records
change while they are down, and secrets are on their cards. All of it with the real commands on real brokers."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from brokers import RunningBroker, open_broker
from end_to_end.test_server_and_devices import Program, device, gca, records, server  # noqa: F401 - a fixture

from broker_server.study.store import StudyStore
from edge_client.methods.defences import rotation
from edge_client.model.choice import trainer_for
from edge_client.private_seeds import Secrets
from edge_client.protocol.chunks import Reassembly
from edge_client.protocol.codec import MAX_BODY, decode, decode_arrays
from edge_client.protocol.messages import Chunk
from edge_client.transport.base import Settings
from edge_client.transport.endpoint import endpoint
from edge_client.transport.mqtt import connector
from sim.config.study import load_study

LONG = ("--rounds", "5000")
FEW = ("--rounds", "4")


def told(study: Path) -> list[tuple[str, str]]:
    """What devices remarked on in a study, without the length that messages have room for."""
    with StudyStore.open(study) as store:
        return store.rows("SELECT device, detail FROM events WHERE kind = 'reported_completed'")


async def killed(program: Program) -> None:
    program.process.send_signal(signal.SIGKILL)
    await program.ended()


async def test_a_new_run_of_the_old_name_finds_the_boards_ready(
    tmp_path: Path,
    records: list[Path],  # noqa: F811
) -> None:
    """One dies with its server and is started anew; both go on in the new run, and what the first had kept is there."""
    state = ("--state", str(tmp_path / "state"))
    async with open_broker("embedded") as broker:
        async with server(broker, tmp_path / "old", *LONG) as old, device(broker, "pi-b", records[1], *state) as b:
            async with device(broker, "pi-a", records[0], *state) as a:
                await a.says("round 3: completed")
                await asyncio.gather(killed(a), killed(b), killed(old))
        async with server(broker, tmp_path / "new", *FEW) as new, device(broker, "pi-b", records[1]) as b:
            async with device(broker, "pi-a", records[0], *state) as a:
                assert [await p.ended() for p in (new, a, b)] == [0, 0, 0], (new.lines, a.lines, b.lines)
    (line,) = (line for line in a.lines if "set aside" in line and line.startswith("shelf.pi-a.npz: "))
    assert "another run of that name" in line and line.endswith("as shelf.pi-a.npz~1, and this device begins anew")
    assert told(tmp_path / "new") == [("pi-a", line)]
    left = {path.name for path in (tmp_path / "state").iterdir() if "pi-a" in path.name}
    assert left == {"shelf.pi-a.npz~1", "shelf.pi-a.secret~1"}


@pytest.mark.mosquitto
async def test_a_board_whose_records_changed_begins_anew_in_the_middle_of_the_run(
    tmp_path: Path,
    records: list[Path],  # noqa: F811
) -> None:
    state = ("--state", str(tmp_path / "state"))
    async with open_broker("mosquitto") as broker, server(broker, tmp_path / "study", *LONG) as serving:
        async with device(broker, "pi-b", records[1]) as b:
            async with device(broker, "pi-a", records[0], *state) as a:
                await a.says("round 3: completed")
                await killed(a)
            async with device(broker, "pi-a", records[2], *state) as a:
                await a.says("shelf.pi-a.npz: it was made from other records, 60 of them where there are 60 now")
                await a.says(": completed")
                assert not any("goes on after round" in line for line in a.lines)
                serving.process.send_signal(signal.SIGTERM)
                await asyncio.gather(serving.ended(), a.ended(), b.ended())
    ((who, line),) = told(tmp_path / "study")
    assert who == "pi-a" and line.endswith("and this device begins anew")


# ---- secrets from files --------------------------------------------------------------------------------------------


@asynccontextmanager
async def overheard(broker: RunningBroker) -> AsyncIterator[dict[str, Reassembly]]:
    """What devices upload in round 1, by device, as anybody hears it on a broker without rules."""
    bodies: dict[str, Reassembly] = {}
    async with connector(endpoint(broker.url))(Settings("eavesdropper")) as transport:
        await transport.subscribe("gca/v1/shelf/up/+/1/+")

        async def listen() -> None:
            async for incoming in transport.messages():
                chunk = decode(incoming.payload, Chunk)
                assert isinstance(chunk, Chunk)
                bodies.setdefault(chunk.device, Reassembly(MAX_BODY)).add(chunk)
                transport.acknowledge(incoming)

        listening = asyncio.create_task(listen())
        yield bodies
        listening.cancel()


async def test_devices_turn_their_codes_by_the_secret_in_their_file(
    tmp_path: Path,
    records: list[Path],  # noqa: F811
) -> None:
    """All records are drawn, and nothing is learned after the upload, so that the final model gives the codes that were
    uploaded. They are found again only by who has the file, and knows which run it was. Lengths are those of the clip
    at most. A device without the file is told what it lacks, and nowhere is the secret seen."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(100, 132)))
    defences = ("training.code_rotation=true", "training.code_clip=0.5", "training.upload_fraction=1.0",
                "training.align_epochs=0")  # fmt: skip
    settings = [word for one in defences for word in ("--set", one)]
    model = tmp_path / "model.npz"
    async with open_broker("embedded") as broker, overheard(broker) as bodies:
        async with server(broker, tmp_path / "study", *settings, "--rounds", "1") as serving:
            mine = ("--secret", str(secret))
            async with device(broker, "pi-b", records[1]) as without:
                assert await without.ended() == 2
                assert "code_rotation" in without.lines[-1] and without.lines[-1].endswith("with --secret FILE")
            async with device(broker, "pi-a", records[0], *mine, "--model", str(model)) as a:
                async with device(broker, "pi-b", records[1], *mine) as b:
                    assert [await p.ended() for p in (serving, a, b)] == [0, 0, 0], (serving.lines, a.lines, b.lines)
    with StudyStore.open(tmp_path / "study") as store:
        ((name,),) = store.rows("SELECT name FROM runs")
    hyper = load_study(tmp_path / "study" / "study.toml").training
    sent = decode_arrays(bodies["pi-a"].body())["latents"]
    with np.load(records[0]) as file, np.load(model) as final:
        samples = file["samples"].astype(np.float32)
        codes = trainer_for(hyper, samples.shape[1]).encode(final["parameters"], samples)
    lengths = np.linalg.norm(codes, axis=1, keepdims=True)
    codes = codes * np.minimum(1.0, 0.5 / lengths)
    assert (lengths > 0.5).any() and sent.shape == codes.shape

    def strangers(run: str) -> int:
        """How many of the codes are not among those that were sent, turned back by the file's rotation of a run."""
        shared = Secrets(b"", secret.read_bytes()).of_run(run, "whoever").shared
        assert shared is not None
        back = sent @ rotation(shared, 1, hyper.latent_dim)
        return int((np.linalg.norm(codes[:, None] - back[None], axis=2).min(axis=1) > 1e-3).sum())

    assert strangers(name) == 0 and strangers("shelf.00000000") > 30
    for content in (secret.read_bytes(), secret.read_bytes().hex().encode()):
        assert not any(content in path.read_bytes() for path in (tmp_path / "study").rglob("*") if path.is_file())
