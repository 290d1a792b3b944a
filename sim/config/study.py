"""The configuration of one study: a frozen value with every choice spelled out.

A TOML file holds what differs from the defaults; the command line overrides single keys; `dump` writes the resolved
study, which loads back as the same value. Links and hardware are names here and are resolved where they are used.
"""

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from edge_client.errors import ConfigError
from edge_client.hyperparameters import Fraction, Hyperparameters, Positive, PositiveReal
from sim.config.combinations import check_combinations
from sim.config.explain import COMMAND_LINE, check_keys, check_override, close_match, explain

DatasetName = Literal[
    "academic", "adult", "bank", "breast_cancer", "cifar10", "cifar10_jpeg", "credit", "fashion_mnist", "magic"
]
Method = Literal["gca", "fedavg", "fedprox", "fednova", "dp_fedavg", "single", "centralized"]
LOCAL: Final = frozenset({"single", "centralized"})
"""Methods without a network: each device trains alone, or one model trains on the records of all."""
Algorithm = Literal["gmm", "kmeans", "soft_kmeans", "minibatch_kmeans"]

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=10_000)]
# A study is written to disk and shared, so its broker address carries no password.
BrokerUrl = Annotated[
    str,
    Meta(
        pattern=r"^(embedded|mqtts?://([^\s:/@]+@)?(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?/?)$",
        max_length=300,
        description='"embedded", mqtt://host[:port] or mqtts://host[:port], without a password',
    ),
]
Seconds = PositiveReal

CHECKPOINT_EVERY_AS_TASKS = 10
"""A task's round takes as long as its arithmetic alone, beside which writing a state is not little."""

SIZE_LIMIT = 64 * 1024
"""Bytes of a configuration file; the largest of ours has about one thousand."""


class Clustering(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The server's fit of K clusters to a round's pooled codes (Algorithm 1, aggregation; appendix "Clustering").

    `covariance` and `regularisation` are the Gaussian mixture's, `temperature` soft K-means', `batch_size`
    mini-batch K-means'. These two and `initialisations`, left out, are the paper's for the kind of records: see
    `sim.config.presets`.
    `warm_start` begins each round from the centroids of the round before.
    An upload with a code of a larger L2 norm than `norm_limit` is refused: no encoder that works comes near it.
    `device_quota` lets at most so many codes of one device into the pool, drawn by the seed; centroids with codes of
    fewer than `minimum_devices_per_centroid` devices are not broadcast; `centroid` "geometric_median" puts each where
    the geometric median of its devices' means is, every device having one vote. None of the three is the paper's.
    """

    algorithm: Algorithm = "gmm"
    components: Positive = 10
    covariance: Literal["full", "diag"] | None = None
    regularisation: Annotated[float, Meta(ge=0.0, le=1e9)] | None = None
    initialisations: Positive | None = None
    max_iterations: Positive = 200
    tolerance: Annotated[float, Meta(ge=0.0, le=1e9)] = 1e-3
    temperature: PositiveReal = 1.0
    batch_size: Positive = 4096
    warm_start: bool = False
    device_quota: Positive | None = None
    minimum_devices_per_centroid: Positive = 1
    centroid: Literal["mean", "geometric_median"] = "mean"
    norm_limit: PositiveReal = 1e6


class Aggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How `fedavg` and `fedprox` combine models: by their mean, or withstanding a minority of hostile devices, by the
    median of each coordinate or by its mean without the fraction `trim` of the values at each end."""

    rule: Literal["mean", "median", "trimmed_mean"] = "mean"
    trim: Annotated[float, Meta(gt=0.0, lt=0.5)] = 0.1


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `dp_fedavg` does on the server: it clips each device's whole update to this L2 norm ("off": not at all),
    and adds noise of standard deviation `noise_multiplier` / C to the mean. No (epsilon, delta) is certified."""

    clip_norm: PositiveReal | Literal["off"] = 1.0
    noise_multiplier: Annotated[float, Meta(ge=0.0, le=1e9)] = 1.0


class Participation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who takes part in a round and how long the server waits.

    `fraction` is phi. The server waits `wait_seconds` for all devices to appear and then goes on with those it has,
    if they are at least `minimum_devices` ("all": every device of the study, else the run ends). `deadline` ends a
    round's uploads: "auto" is `grace` times what bytes, link and compute let expect, and `wait_seconds`, but never more
    than `deadline_limit` seconds, at least `wait_seconds`, whatever devices claim or take; a number is seconds. A round
    with fewer than `quorum` uploads ends the run. With `over_selection` a round asks so many times as many devices and
    closes when as many uploads are in as `fraction` wants: the rest is late. `dropout` is the share of rounds in which
    an emulated device is silent, drawn from the seed; it is waited for until the deadline.

    A device that sends more than `rubbish_limit` messages of no use in a round (undecodable, of another run or round,
    unasked, repeated), or more than `message_limit` beside the chunks of its uploads, is excluded from it: what it
    sends is not read any more, and nobody waits for its upload; one that was accepted before counts.
    """

    fraction: Fraction = 1.0
    minimum_devices: Literal["all"] | Positive = "all"
    wait_seconds: Seconds = 60.0
    deadline: Literal["auto"] | Seconds = "auto"
    deadline_limit: Seconds = 86_400.0
    grace: Annotated[float, Meta(ge=1.0, le=1e3)] = 3.0
    quorum: Positive = 1
    over_selection: Annotated[float, Meta(ge=1.0, le=100.0)] = 1.0
    dropout: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    rubbish_limit: Positive = 100
    message_limit: Positive = 1000


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the training normals are shared out; every device gets at least `minimum_records`.

    "iid": uniform shards of equal size. "non_iid": like records on like devices, sizes 10:1 (`sim.data.non_iid`).
    """

    partition: Literal["iid", "non_iid"] = "iid"
    minimum_records: Positive = 10


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When devices are scored on the test set: after every local epoch, at the end of every local phase, or once a
    round, with the model that it ends with. After an exchange of parameters the aggregate is judged, too."""

    every: Literal["epoch", "phase", "round"] = "epoch"


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One study. `link` is a profile's name or an ad-hoc description, `hardware` a profile's name; a list of them goes
    round, in the order of the devices (`sim.config.devices`).

    `isolation` says whether each device is a process behind real MQTT, or a task of one process over a network in
    memory; left out, it follows from `clock`. A virtual clock needs tasks.

    With compute "replay" the first study of a training records it beside its folder, and the others, on other links
    or boards, take it from there, in the same virtual time and to the same bits; a link that changes who takes part is
    refused. With "synthetic" models stay as they began: for questions about the protocol.

    After every `checkpoint_every` rounds each device's state is written down, so that a study whose program was killed
    can go on from there; left out, that is each round, or with devices that are tasks each tenth. No result depends on
    it. Synthetic models have nothing to keep.
    """

    dataset: DatasetName
    method: Method = "gca"
    devices: Positive = 10
    rounds: Positive = 100
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 100
    link: Name | Names = "none"
    hardware: Name | Names = "host"
    broker: BrokerUrl = "embedded"
    training: Hyperparameters = Hyperparameters()
    clustering: Clustering = Clustering()
    aggregation: Aggregation = Aggregation()
    privacy: Privacy = Privacy()
    participation: Participation = Participation()
    data: Data = Data()
    evaluation: Evaluation = Evaluation()
    isolation: Literal["process", "task"] | None = None
    clock: Literal["real", "virtual"] = "real"
    compute: Literal["real", "replay", "synthetic"] = "real"
    checkpoint_every: Positive | Literal["off"] | None = None

    @property
    def checkpoints(self) -> int | None:
        """After every how many rounds devices keep what they could go on from; None: never."""
        if self.checkpoint_every == "off" or self.compute == "synthetic":
            return None
        return self.checkpoint_every or (CHECKPOINT_EVERY_AS_TASKS if self.as_tasks else 1)

    @property
    def as_tasks(self) -> bool:
        """Whether the devices are tasks of one process."""
        return self.isolation == "task" or (self.isolation is None and (self.clock == "virtual" or self.is_local))

    @property
    def is_local(self) -> bool:
        """Whether the method does without a network."""
        return self.method in LOCAL

    @property
    def minimum_devices(self) -> int:
        """Fewest devices the run goes on with, "all" resolved."""
        minimum = self.participation.minimum_devices
        return self.devices if minimum == "all" else minimum


def load_study(path_or_name: str | Path, overrides: Mapping[str, object] | None = None) -> Study:
    """Return the study in a TOML file, with single keys overridden.

    `path_or_name` is a path, or a name among the packaged ones ("paper/magic", "configs/paper/magic.toml"); a path
    that exists wins. `overrides` maps dotted keys ("training.latent_dim") to values; None stands for "not given".
    Raises ConfigError, one line with the file, the key, what is wrong and what is allowed.
    """
    file, where = _locate(str(path_or_name))
    tree = _parse(file, where)
    check_keys(Study, tree, where)
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    for key, value in given.items():
        check_override(Study, key)
        _put(tree, key, value)
    try:
        study = msgspec.convert(tree, Study)
    except msgspec.ValidationError as error:
        complaint = explain(Study, tree, str(error), lambda key: COMMAND_LINE if key in given else where)
        raise ConfigError(complaint) from error
    check_combinations(study, lambda *keys: COMMAND_LINE if given.keys() & set(keys) else where)
    return study


def parse_override(text: str) -> tuple[str, object]:
    """Return (dotted key, value) of a `key=value` argument; the value is TOML, or else plain text."""
    key, equals, value = text.partition("=")
    if not (equals and key.strip() and value.strip()):
        raise ConfigError(f"{COMMAND_LINE}: {text!r} is no setting; write key=value, such as training.latent_dim=16")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
    return key.strip(), parsed["value"] if len(parsed) == 1 else value.strip()


def packaged() -> tuple[str, ...]:
    """Return the names of the studies that come with the project, such as "demo" and "paper/magic"."""
    root = resources.files("configs")
    found = [(entry.name, entry) for entry in root.iterdir()]
    found += [(f"{name}/{inner.name}", inner) for name, entry in found if entry.is_dir() for inner in entry.iterdir()]
    # links.toml and hardware.toml lie beside the studies and are none.
    names = (name.removesuffix(".toml") for name, entry in found if entry.is_file() and name.endswith(".toml"))
    return tuple(sorted(name for name in names if name not in {"links", "hardware"}))


def dump(study: Study) -> str:
    """Return the resolved study as TOML, every key written out; `load_study` of it gives an equal study."""
    tree: dict[str, Any] = msgspec.to_builtins(study)
    top = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    blocks = [_lines(top)]
    blocks += [f"[{key}]\n{_lines(value)}" for key, value in tree.items() if isinstance(value, dict)]
    return "\n".join(blocks)


def _lines(table: Mapping[str, object]) -> str:
    # TOML's strings, numbers, booleans and arrays are written as JSON's, DEL apart; an absent key stands for None.
    rows = ((key, value) for key, value in table.items() if value is not None)
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in rows).replace(
        "\x7f", "\\u007f"
    )


def _locate(name: str) -> tuple[Path | Traversable, str]:
    path = Path(name)
    if path.is_file():
        return path, name
    if path.is_dir():
        raise ConfigError(f"{name}: is a folder; name one study in it, such as {Path(name) / 'magic.toml'}")
    bare = name.removeprefix("configs/").removesuffix(".toml")
    known = packaged()
    if bare in known:
        return resources.files("configs").joinpath(f"{bare}.toml"), f"configs/{bare}.toml"
    raise ConfigError(
        f"{name}: no such file or packaged study{close_match(bare, known)}; packaged are {', '.join(known)}"
    )


def _parse(file: Path | Traversable, where: str) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            content = stream.read(SIZE_LIMIT + 1)
        if len(content) > SIZE_LIMIT:
            raise ConfigError(f"{where}: holds more than {SIZE_LIMIT:,} bytes; a study is a short TOML file")
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: is not valid TOML: {error}; correct that line") from error


def _put(tree: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value
