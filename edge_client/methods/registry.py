"""The methods a device knows, by the name the server calls them."""

from edge_client.errors import ConfigError
from edge_client.methods.base import DeviceMethod
from edge_client.methods.fedavg import FedAvg
from edge_client.methods.fedprox import FedProx
from edge_client.methods.gca import Gca

_METHODS: dict[str, DeviceMethod] = {
    "gca": Gca(),
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "fednova": FedAvg(),  # differs in how the server averages
    "dp_fedavg": FedAvg(),  # differs in what the server clips and adds
}


def method(name: str) -> DeviceMethod:
    """Return the device half of a method; raises `ConfigError` for one that this version does not know."""
    if name not in _METHODS:
        known = ", ".join(sorted(_METHODS))
        raise ConfigError(f"the server runs method {name!r}, this device knows {known}: install a newer version")
    return _METHODS[name]
