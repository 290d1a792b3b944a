"""The figures the paper prints, as `configs/published/` holds them, in one form for all tables of accuracies."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from edge_client.errors import ConfigError

Measure = Literal["peak", "alignment_peak_of_one_device", "ntmse", "excess_cosine"]
"""How a table takes one figure from a run: the best instant of the mean over devices among those the paper judges;
for the weighting diagnostic, the best alignment epoch of the first device alone; or what the server's extraction attack
on the first device gives."""

TITLES = {
    "table04": "IID accuracy of GCA with Gaussian mixtures, by K",
    "table05": "Inverse-support against uniform weights, alignment epochs of one fixed device",
    "table06": "IID accuracy of every method",
    "table07": "IID accuracy of GCA with K-means, by K",
    "table08": "IID accuracy of GCA with soft K-means, by K",
    "table09": "IID accuracy of GCA with mini-batch K-means, by K",
    "table10_ntmse": "Extraction from one device: normalised target MSE (higher: less leaks)",
    "table10_excess_cosine": "Extraction from one device: excess cosine (lower: less leaks)",
    "table13": "Non-IID accuracy of GCA with Gaussian mixtures, by K",
    "table14": "Non-IID accuracy of every method",
}
"""The tables that take runs; Table 10 is two. Tables 11 and 12 need none: see `gca plan`."""

EXTRACTION: dict[str, Measure] = {"table10_ntmse": "ntmse", "table10_excess_cosine": "excess_cosine"}
BACKENDS = {"table07": "kmeans", "table08": "soft_kmeans", "table09": "minibatch_kmeans"}
NON_IID = {"table13", "table14"}


@dataclass(frozen=True, eq=False)  # by identity, so that a figure can be a key
class Figure:
    """One published cell: the dataset, what tells it from its neighbours, mean and standard deviation (accuracies in
    percent), and the keys of a study that ask for the same."""

    table: str
    dataset: str
    label: str
    mean: float
    std: float
    overrides: Mapping[str, object] = field(default_factory=dict)
    measure: Measure = "peak"


def figures(table: str) -> list[Figure]:
    """Return the cells of a table, in its order; raises ConfigError for a table there is not."""
    if table not in TITLES:
        raise ConfigError(f"{table}: no table that runs can make; there are {', '.join(TITLES)}")
    return list(_figures(table))


def _figures(table: str) -> Iterator[Figure]:
    best = {row["dataset"]: int(row["k_star"]) for row in rows("table03")}
    common: dict[str, object] = {"data.partition": "non_iid"} if table in NON_IID else {}
    for row in rows(table.partition("_")[0]):
        dataset = row["dataset"]
        if measure := EXTRACTION.get(table):
            mean, std = float(row[f"{measure}_mean"]), float(row[f"{measure}_std"])
            keys = _of_method(row["method"], best[dataset])
            yield Figure(table, dataset, row["method"], mean, std, keys, measure)
            continue
        if table == "table05":
            for weighting in ("inverse", "uniform"):
                yield Figure(
                    table, dataset, weighting, float(row[f"{weighting}_mean_pct"]), float(row[f"{weighting}_std_pct"]),
                    {"training.weighting": weighting, "clustering.components": best[dataset]},
                    "alignment_peak_of_one_device",
                )  # fmt: skip
            continue
        mean, std = float(row["accuracy_mean_pct"]), float(row["accuracy_std_pct"])
        if "k" in row:
            keys = {"clustering.components": int(row["k"])}
            if table in BACKENDS:
                keys["clustering.algorithm"] = BACKENDS[table]
            label = f"K={row['k']}"
        else:
            keys = _of_method(row["method"], best[dataset])
            label = row["method"]
        yield Figure(table, dataset, label, mean, std, {**common, **keys})


def _of_method(method: str, components: int) -> dict[str, object]:
    """Return the keys of a method's study; GCA's is the one at K*."""
    return {"method": method} | ({"clustering.components": components} if method == "gca" else {})


def names(asked: Sequence[str]) -> list[str]:
    """Return the tables that a person asked for: "all", or a published table by its number, which may be several."""
    if list(asked) == ["all"]:
        return list(TITLES)
    return [table for one in asked for table in ([t for t in TITLES if t.partition("_")[0] == one] or [one])]


def rows(table: str) -> list[dict[str, str]]:
    """Return a published table as it stands, one mapping per row."""
    folder = resources.files("configs").joinpath("published")
    for entry in folder.iterdir():
        if entry.name.startswith(table) and entry.name.endswith(".csv"):
            return list(csv.DictReader(entry.read_text(encoding="utf-8").splitlines()))
    raise ConfigError(f"{table}: configs/published holds no such table; install the project again")
