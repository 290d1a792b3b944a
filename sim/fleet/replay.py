"""Local work and aggregation recorded once, and taken from the recording on other links.

What a model is follows from what it has gone through: its rounds, and in each whether it trained and what it was sent.
A digest of that, its past, is kept with each recorded step. On another link a device has the recorded step's result if
its model has the same past, and the server that of a round if the same uploads were accepted. Where the link changes
who takes part, neither holds, and the run ends with the reason: those numbers would be made up.
"""

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker_server.methods.base import Aggregate, ServerMethod, Upload
from edge_client.errors import GcaError
from edge_client.hyperparameters import Hyperparameters
from edge_client.methods.base import Arrays, DeviceMethod
from edge_client.methods.context import LocalContext
from edge_client.methods.registry import method
from edge_client.model.choice import trainer_for
from edge_client.model.scoring import ranking
from edge_client.model.trainer import ModelState, Trainer
from edge_client.protocol import codec
from edge_client.protocol.messages import Telemetry
from sim.fleet.recording import Recording, Turn
from sim.fleet.work import RealWork

BEGINNING = b""
"""The past of a model before round 1."""
NO_MODEL = ModelState.fresh(np.empty(0, np.float32))
"""What a replayed device has in place of a model."""
NAMED = 3
"""Devices that a refusal names; it counts the others."""


def trained(past: bytes, round: int) -> bytes:
    """Return the past of a model that has trained for the upload of a round."""
    return _digest(past + b"trained" + round.to_bytes(8))


def taught(past: bytes, round: int, broadcast: Arrays) -> bytes:
    """Return the past of a model that has taken in the broadcast of a round."""
    parts = [past, b"taught", round.to_bytes(8)]
    for name, array in sorted(broadcast.items()):
        parts += [name.encode(), str(array.shape).encode(), np.ascontiguousarray(array).tobytes()]
    return _digest(b"".join(parts))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


class Recorded:
    """A device's method whose results are noted; all else is that method's."""

    def __init__(self, real: DeviceMethod) -> None:
        self._real = real
        self.before = self.past = BEGINNING
        self.upload: dict[str, NDArray[Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        state, self.upload = self._real.before_upload(state, context)
        self.past = trained(self.past, context.round)
        return state, self.upload

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        state = self._real.after_broadcast(state, context, broadcast)
        self.past = taught(self.past, context.round, broadcast)
        return state

    def turn(self, told: Telemetry) -> Turn:
        """Return the round that a device has just reported, and be ready for the next."""
        turn = Turn(told.round, told.device, self.before, self.past, self.upload, told.evaluations, told.state_sha256)
        self.before, self.upload = self.past, None
        return turn


class RecordedServer:
    """A server's method whose results are noted; all else is that method's."""

    def __init__(self, real: ServerMethod, recording: Recording) -> None:
        self._real, self._recording = real, recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: codec.Arrays | None) -> Aggregate:
        given = self._real.aggregate(round, uploads, previous)
        self._recording.keep_round(round, sorted(uploads), given)
        return given


class RecordedWork(RealWork):
    """All of it is done, and kept in a recording."""

    def __init__(self, test: NDArray[np.floating[Any]] | None, recording: Recording) -> None:
        super().__init__(test)
        self._recording = recording
        self._devices: dict[str, Recorded] = {}

    def method(self, device: str) -> Callable[[str], DeviceMethod]:
        return lambda name: self._devices.setdefault(device, Recorded(method(name)))

    def server(self, method: ServerMethod) -> ServerMethod:
        return RecordedServer(method, self._recording)

    def told(self, telemetry: Telemetry) -> Telemetry:
        self._recording.keep_turn(self._devices[telemetry.device].turn(telemetry))
        return telemetry

    def ended(self, device: str, state: ModelState) -> ModelState | None:
        self._recording.keep_model(device, self._devices[device].past, state)
        return state

    def speed(self, measured: Callable[[], float]) -> float:
        speed = measured()
        self._recording.keep_fact("speed", repr(speed))
        return speed


# ---- from a recording ------------------------------------------------------------------------------------------------


class ReplayedWork:
    """None of it is done: results are those of a recording, where they are those of this run. `link` is what to call
    the link of this run. `refusal` is the reason once they are not."""

    is_light = True
    is_done_here = False
    ranking = staticmethod(ranking)

    def __init__(self, recording: Recording, link: str) -> None:
        self.refusal: GcaError | None = None
        self._recording, self._link = recording, link
        self._devices: dict[str, Replayed] = {}

    def trainer(self, device: str) -> Callable[[Hyperparameters, int], Trainer]:
        return trainer_for  # asked for its sizes only

    def method(self, device: str) -> Callable[[str], DeviceMethod]:
        return lambda name: self._devices.setdefault(device, Replayed(method(name), self, self._recording))

    def server(self, method: ServerMethod) -> ServerMethod:
        return ReplayedServer(method, self, self._recording)

    def told(self, telemetry: Telemetry) -> Telemetry:
        return self._devices[telemetry.device].told(telemetry)

    def ended(self, device: str, state: ModelState) -> ModelState | None:
        replayed = self._devices[device]
        model = self._recording.model(device, replayed.past)
        if model is None:
            raise self.refuse(replayed.told_of, f"{device} ends with a model that has taken in other broadcasts")
        return model

    def speed(self, measured: Callable[[], float]) -> float:
        known = self._recording.fact("speed")
        return measured() if known is None else float(known)

    def refuse(self, round: int, what: str) -> GcaError:
        """Return the error that says why the recording does not hold for this run."""
        recorded = self._recording.fact("link")
        self.refusal = self.refusal or GcaError(
            f'compute: "replay" does not hold on link {self._link}: round {round}: {what}, unlike on link {recorded}, '
            'where the training was recorded; run this study with compute = "real"'
        )
        return self.refusal


class Replayed:
    """A device's method whose results are those of a recording; in all else it is that method."""

    def __init__(self, real: DeviceMethod, work: ReplayedWork, recording: Recording) -> None:
        self._real, self._work, self._recording = real, work, recording
        self.past = BEGINNING
        self.told_of = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def initial(self, context: LocalContext) -> ModelState:
        return NO_MODEL

    def before_upload(self, state: ModelState, context: LocalContext) -> tuple[ModelState, dict[str, NDArray[Any]]]:
        round, device = context.round, context.device
        turn = self._recording.turn(round, device)
        if turn is None or turn.upload is None:
            raise self._work.refuse(round, f"{device} takes part")
        if turn.before != self.past:
            raise self._work.refuse(round, f"{device} begins with a model that has taken in other broadcasts")
        self.past = trained(self.past, round)
        return state, turn.upload

    def after_broadcast(self, state: ModelState, context: LocalContext, broadcast: Arrays) -> ModelState:
        self.past = taught(self.past, context.round, broadcast)
        return state

    def told(self, telemetry: Telemetry) -> Telemetry:
        """Return a report with what was recorded of its round. The last one of a run repeats a round."""
        round, device = telemetry.round, telemetry.device
        turn = self._recording.turn(round, device)
        if turn is None or turn.after != self.past:
            raise self._work.refuse(round, f"{device} ends with a model that has taken in other broadcasts")
        judged = turn.evaluations if round > self.told_of else ()
        self.told_of = round
        aside = {"evaluate": 0.0} if judged else {}  # judging takes no virtual time
        return msgspec.structs.replace(telemetry, evaluations=judged, spent_s={**telemetry.spent_s, **aside},
                                       state_sha256=turn.state_sha256)  # fmt: skip


class ReplayedServer:
    """A server's method whose results are those of a recording; in all else it is that method."""

    def __init__(self, real: ServerMethod, work: ReplayedWork, recording: Recording) -> None:
        self._real, self._work, self._recording = real, work, recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def aggregate(self, round: int, uploads: Mapping[str, Upload], previous: codec.Arrays | None) -> Aggregate:
        accepted, given = self._recording.round(round) or ([], Aggregate({}))
        if late := [device for device in accepted if device not in uploads]:
            raise self._work.refuse(round, f"the uploads of {_named(late)} are not in time")
        if early := sorted(set(uploads).difference(accepted)):
            raise self._work.refuse(round, f"the uploads of {_named(early)} are in time")
        return given


def _named(devices: list[str]) -> str:
    more = f" and {len(devices) - NAMED} more" if len(devices) > NAMED else ""
    return ", ".join(devices[:NAMED]) + more
