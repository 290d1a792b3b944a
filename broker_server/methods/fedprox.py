"""FedProx, the server half (Li et al., MLSys 2020, Algorithm 2): FedAvg's. The difference is on the device."""

from broker_server.methods.fedavg import FedAvgServer


class FedProxServer(FedAvgServer):
    """Averages as FedAvg does."""
