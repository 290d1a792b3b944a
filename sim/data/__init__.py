"""Datasets: find or fetch the published file, verify it, preprocess it, share it out among devices."""

from sim.data.catalogue import Description, describe
from sim.data.dataset import Dataset, Provenance, load
from sim.data.partition import device_name, iid, shares
from sim.data.tabular import Dropped

__all__ = ["Dataset", "Description", "Dropped", "Provenance", "describe", "device_name", "iid", "load", "shares"]
