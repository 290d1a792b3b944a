"""Hostile bytes for all that reads bytes from outside: nothing but the typed errors may come of them.

    python -m fuzz.decoder [--count 1000000] [--seed 1]    mutates valid inputs; repeats exactly with its seed
    python -m fuzz.decoder --atheris [CORPUS ...]          the same targets under coverage (pip install atheris)

Of a hundred inputs, about 60 go to the decoder and a coordinator in the middle of a run, which keeps its study (20
of them as uploads whose envelope is valid and whose body is not, 3 as what a server of the same name says), 20 to a
device's mailbox, 15 to the broker's parser and core, the rest to the readers of checkpoints and CSV files. Says how far
memory grew after the first tenth.
"""

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from broker_server.broker import packets as mqtt
from broker_server.broker.core import Broker
from broker_server.broker.encode import encode as encode_packet
from broker_server.broker.parse import PacketParser
from broker_server.study.checkpoint import load_checkpoint, save_checkpoint
from broker_server.study.results import balance, curve, events, fates, last_run
from broker_server.study.start import Start, load_start, save_start
from broker_server.study.store import StudyStore
from edge_client.checkpoint import Checkpoint, load, save
from edge_client.data.csv_records import Columns, load_csv
from edge_client.errors import ConfigError, EnvironmentFault, ProtocolError
from edge_client.model.trainer import ModelState
from edge_client.protocol import topics
from edge_client.protocol.codec import decode, decode_arrays, encode_arrays
from edge_client.protocol.messages import (
    SERVER,
    Accept,
    Chunk,
    Join,
    Presence,
    Probe,
    Reject,
    RoundState,
    Telemetry,
    Welcome,
)
from fuzz.federation import CODES, RUN, Federation, Post
from fuzz.mutate import mutated

KINDS = (Accept, Chunk, Join, Presence, Probe, Reject, RoundState, Telemetry, Welcome)
HONEST = "a"
"""The device that mostly sends what it should, so that rounds come to their ends and the run goes on."""
RENEWED_EVERY = 50_000
"""Inputs that one coordinator, mailbox and broker live through: what they keep of each would show as memory."""
FRAMES = (
    mqtt.Connect("dev", True, 60, mqtt.Will("gca/v1/fuzz/pres/a", b"lost", 1, True), "a", b"secret"),
    mqtt.Publish("gca/v1/fuzz/up/a/1/0", b"payload", 1, False, False, 7),
    mqtt.Subscribe(3, (("gca/v1/fuzz/#", 1), ("a/+/b", 0))),
    mqtt.Unsubscribe(4, ("gca/v1/fuzz/#",)),
    mqtt.PubAck(7), mqtt.PingReq(), mqtt.Disconnect(),
)  # fmt: skip


class Targets:
    """All readers, each with what it lives in and a valid input to begin from."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.outcomes: Counter[str] = Counter()
        vector = np.arange(20, dtype=np.float32)
        save(scratch / "device.npz", Checkpoint("fuzz.5f0c21aa", "a", 3, 3, 9, ModelState(vector, vector, vector)))
        save_start(scratch, Start(3, CODES, 12.5, 40, {"a": 1.5}))
        save_checkpoint(scratch / "model", CODES, {"round": "3"})
        rows = "\n".join(f"{n}.5,{n * n},{n % 4}" for n in range(40))
        (scratch / "records.csv").write_text(f"x,y,label\n{rows}\n")
        self._files = {
            name: (scratch / name).read_bytes() for name in ("device.npz", "rounds/00003.safetensors", "model",
                                                             "records.csv")
        }  # fmt: skip
        self._begin()

    def renew(self) -> None:
        """Begin anew with all that remembers what it was given."""
        self.close()
        self._begin()

    def _begin(self) -> None:
        self.federation = Federation(self._scratch / "study")
        self.post, self.broker, self._connection = Post(), Broker(), 0

    def _next_run(self) -> None:
        """Go on with another run where a hostile input has ended one, as it may: all devices can leave, and another
        server can be further."""
        self.close()
        self.federation = Federation(self._scratch / "study")

    def close(self) -> None:
        """End the run and clear its study away; what it has written down must be readable."""
        self.outcomes["rounds"] += self.federation.rounds
        self.federation.close()
        with StudyStore.open(self._scratch / "study") as store:
            run = last_run(store).run
            self.outcomes["evaluations kept"] += len(curve(store, run))
            for query in (balance, events, fates):
                query(store, run)
        shutil.rmtree(self._scratch / "study")

    # ---- one input each ------------------------------------------------------------------------------------------

    def message(self, topic: str, data: bytes) -> None:
        for kind in KINDS:
            try:
                decode(data, kind)
                self.outcomes["message read"] += 1
            except ProtocolError:
                self.outcomes["message refused"] += 1
        self.federation.send(topic, data)
        if self.federation.over:
            self.outcomes["runs ended"] += 1
            self._next_run()

    def body(self, device: str, data: bytes) -> None:
        try:
            decode_arrays(data, 4096)
            self.outcomes["body read"] += 1
        except ProtocolError:
            self.outcomes["body refused"] += 1
        for topic, chunk in list(self.federation.upload(device, data))[:64]:
            self.federation.send(topic, chunk)

    def frame(self, data: bytes) -> None:
        """A new connection, which introduces itself properly before it sends this."""
        self._connection += 1
        number, now = self._connection, self._connection * 0.01
        self.broker.opened(number, now)
        self.broker.received(number, mqtt.Connect("dev", True, 60), now)
        try:
            for packet in PacketParser(65_536).feed(data):
                self.broker.received(number, packet, now)
            self.outcomes["frames read"] += 1
        except mqtt.MalformedPacket:
            self.outcomes["frames refused"] += 1
        self.broker.lost(number, now)

    def file(self, name: str, data: bytes) -> None:
        path = self._scratch / name
        path.write_bytes(data)
        readers: dict[str, Callable[[], object]] = {
            "device.npz": lambda: load(path),
            "rounds/00003.safetensors": lambda: load_start(self._scratch, 3),
            "model": lambda: load_checkpoint(path),
            "records.csv": lambda: load_csv(path, Columns("label", "0")),
        }
        try:
            readers[name]()
            self.outcomes["file read"] += 1
        except (EnvironmentFault, ConfigError):
            self.outcomes["file refused"] += 1

    # ---- mutations -----------------------------------------------------------------------------------------------

    def step(self, chance: random.Random) -> None:
        """Make one input and give it to its reader."""
        choice, federation = chance.random(), self.federation
        if choice < 0.03:
            topic, data = federation.of_a_server(chance)
            self.message(topic, mutated(data, chance, federation.announced) if chance.random() < 0.7 else data)
        elif choice < 0.40:
            device, hostile = chance.choice("abc"), chance.random() < 0.9
            topic, data = federation.valid(device, chance)
            if hostile and (device != HONEST or chance.random() < 0.05):
                data = mutated(data, chance, federation.valid(device, chance)[1])
            if chance.random() < 0.05:
                topic = mutated(topic.encode(), chance).decode(errors="replace")
            self.message(topic, data)
        elif choice < 0.60:
            self.body(chance.choice("bc"), mutated(encode_arrays(CODES), chance, encode_arrays({"x": np.zeros(3)})))
        elif choice < 0.80:
            topic, data = self.post.valid(chance)
            self.post.take(topic, mutated(data, chance) if chance.random() < 0.9 else data)
        elif choice < 0.95:
            sent = b"".join(encode_packet(chance.choice(FRAMES)) for _ in range(chance.randint(1, 3)))
            self.frame(mutated(sent, chance))
        else:
            name = chance.choice(tuple(self._files))
            self.file(name, mutated(self._files[name], chance))

    def one_input(self, data: bytes) -> None:
        """Give bytes as they are to the reader that the first of them names."""
        which, data = (data[0] % 10, data[1:]) if data else (0, b"")
        device_topics = (topics.presence, topics.join, topics.telemetry)
        match which:
            case 0 | 1 | 2:
                self.message(device_topics[which](RUN, "a"), data)
            case 3:
                self.message(topics.upload(RUN, "a", self.federation.round, 0), data)
            case 4:
                self.body("a", data)
            case 5:
                self.post.take(topics.down(RUN, "a", "welcome"), data)
            case 6:
                self.frame(data)
            case 7:
                self.message(topics.round_state(RUN), data)
            case 8:
                self.message(topics.down(RUN, SERVER, "probe"), data)
            case _:
                self.file(tuple(self._files)[len(data) % len(self._files)], data)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def campaign(count: int, seed: int, say: Callable[[str], None] = print) -> tuple[Counter[str], float]:
    """Try `count` inputs; return what became of them, and by how many MB memory grew beyond that after a tenth."""
    chance, began = random.Random(seed), time.monotonic()  # noqa: S311 - nothing here is secret
    with tempfile.TemporaryDirectory() as scratch:
        targets = Targets(Path(scratch))
        settled = grown = 0.0
        for number in range(count):
            if number and number % RENEWED_EVERY == 0:
                targets.renew()
            try:
                targets.step(chance)
            except Exception:
                say(f"input {number} of seed {seed} raised; repeat with --seed {seed} --count {number + 1}")
                raise
            if number == count // 10:
                settled = resident_mb()
            elif number > count // 10 and number % 1000 == 999:
                grown = max(grown, resident_mb() - settled)
        targets.close()
    say(f"{count} inputs, {time.monotonic() - began:.0f} s; memory grew by {grown:.1f} MB over {settled:.0f} MB")
    say("  " + ", ".join(f"{times} {what}" for what, times in sorted(targets.outcomes.items())))
    return targets.outcomes, grown


def under_atheris(arguments: list[str]) -> None:
    """Hand the same readers to libFuzzer; it never returns."""
    import atheris  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as scratch:
        targets = Targets(Path(scratch))
        atheris.instrument_all()
        atheris.Setup([sys.argv[0], *arguments], targets.one_input)
        atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--atheris", action="store_true")
    asked, rest = parser.parse_known_args()
    if asked.atheris:
        under_atheris(rest)
    campaign(asked.count, asked.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
