"""Which values of a study exclude each other, each refused in one line with what is allowed instead."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from edge_client.cohort import sizes
from edge_client.errors import ConfigError
from edge_client.words import counted
from sim.config.explain import shown

if TYPE_CHECKING:
    from sim.config.study import Study

Where = Callable[..., str]
"""Says, of dotted keys, where a value of theirs came from: the command line, if that gave any of them, or the file."""


def check_combinations(study: "Study", where: Where) -> None:
    """Raise ConfigError for values that are allowed one by one, but not together."""
    _check_numbers(study, where)
    _check_method(study, where)
    _check_defences(study, where)
    _check_isolation(study, where)


def _check_numbers(study: "Study", where: Where) -> None:
    """Raise ConfigError for more devices wanted than there are, for silent ones that nobody gives up on, and for
    deadlines before the wait that all are promised is over."""
    who = study.participation
    if (minimum := study.minimum_devices) > study.devices:
        raise ConfigError(
            f"{where('devices', 'participation.minimum_devices')}: participation.minimum_devices: {minimum} is more "
            f"than the {counted(study.devices, 'device')} of this study; "
            f'allowed: "all" or a whole number from 1 to {study.devices}'
        )
    drawn, _ = sizes(study.devices, who.fraction)
    if who.quorum > drawn:
        raise ConfigError(
            f"{where('devices', 'participation.quorum', 'participation.fraction')}: participation.quorum: {who.quorum} "
            f"is more than the {counted(drawn, 'device')} that a round asks; allowed: a whole number from 1 to {drawn}"
        )
    if who.dropout and who.deadline == "auto":
        raise ConfigError(
            f"{where('participation.dropout')}: participation.dropout: who is silent is waited for until the deadline, "
            'and "auto" may have none in round 1; allowed with participation.deadline in seconds'
        )
    if who.deadline == "auto" and who.deadline_limit < who.wait_seconds:
        raise ConfigError(
            f"{where('participation.deadline_limit', 'participation.wait_seconds')}: participation.deadline_limit: "
            f"{who.deadline_limit:.12g} s is less than the {who.wait_seconds:.12g} s of participation.wait_seconds, "
            f"which a round has at least; allowed: {who.wait_seconds:.12g} or more, or fewer wait_seconds"
        )


def _check_method(study: "Study", where: Where) -> None:
    """Raise ConfigError for what the method cannot be combined with."""
    if study.aggregation.rule != "mean" and study.method not in ("fedavg", "fedprox"):
        raise ConfigError(
            f"{where('aggregation.rule')}: aggregation.rule: {shown(study.aggregation.rule)} is for fedavg and "
            f'fedprox; allowed with method "{study.method}": "mean"'
        )
    if (needed := study.clustering.minimum_devices_per_centroid) > study.devices:
        raise ConfigError(
            f"{where('clustering.minimum_devices_per_centroid')}: clustering.minimum_devices_per_centroid: {needed} is "
            f"more than the {counted(study.devices, 'device')} of this study; allowed: a whole number from 1 to "
            f"{study.devices}"
        )
    if study.is_local:
        for key, value, usual in (("broker", study.broker, "embedded"), ("compute", study.compute, "real")):
            if value != usual:
                raise ConfigError(
                    f'{where(key)}: {key}: {shown(value)} is nothing to method "{study.method}", which uses no '
                    f'network; allowed: "{usual}"'
                )
    elif study.method != "gca" and study.training.init == "independent":
        raise ConfigError(
            f'{where("training.init")}: training.init: "independent" gives {study.method} no common model to begin '
            'with; allowed: "shared"'
        )


def _check_defences(study: "Study", where: Where) -> None:
    """Raise ConfigError for defences of codes that defend nothing, or that exclude each other."""
    chosen = study.training
    for key, value in (("code_clip", chosen.code_clip), ("code_noise", chosen.code_noise),
                       ("code_rotation", chosen.code_rotation)):  # fmt: skip
        if value and study.method != "gca":
            raise ConfigError(
                f"{where(f'training.{key}')}: training.{key}: defends codes, of which {study.method} uploads none; "
                'allowed with method "gca"'
            )
    if chosen.code_noise and chosen.code_clip is None:
        raise ConfigError(
            f"{where('training.code_noise')}: training.code_noise: {shown(chosen.code_noise)} is in units of "
            "training.code_clip, which is missing; allowed together with training.code_clip"
        )
    if chosen.code_rotation and study.clustering.warm_start:
        raise ConfigError(
            f"{where('clustering.warm_start')}: clustering.warm_start: the centroids of the round before are turned "
            "otherwise than the codes of this one; allowed with training.code_rotation = false"
        )


def _check_isolation(study: "Study", where: Where) -> None:
    """Raise ConfigError for what devices in one process, or in processes of their own, cannot have."""
    if study.isolation == "process" and study.clock == "virtual":
        raise ConfigError(
            f'{where("clock")}: clock: "virtual" is the clock of one event loop, which processes do not share; '
            'allowed with isolation = "process": "real"'
        )
    if study.as_tasks and study.broker != "embedded":
        raise ConfigError(
            f"{where('broker')}: broker: {shown(study.broker)} is reached over a network, which devices that are "
            'tasks have in memory; allowed: "embedded", or a real clock with isolation = "process"'
        )
    if study.compute == "replay" and study.clock != "virtual":
        raise ConfigError(
            f'{where("compute")}: compute: "replay" re-times a recorded training, which takes clock = "virtual"; '
            'allowed with a real clock: "real"'
        )
    if study.compute == "replay" and study.participation.over_selection > 1:
        raise ConfigError(
            f'{where("compute")}: compute: "replay" needs the same uploads on every link, and with '
            'participation.over_selection the fastest are taken; allowed with it: "real"'
        )
    if study.compute == "synthetic" and not study.as_tasks:
        raise ConfigError(
            f'{where("compute")}: compute: "synthetic" needs devices that are tasks; allowed with '
            'isolation = "process": "real"'
        )
