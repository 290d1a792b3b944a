"""FedAvg on Flower's simulation engine: python flower_run.py WORKLOAD ROUNDS; the last line is a JSON object.

The strategy is Flower's own with its defaults: all clients train, then all clients judge the aggregate. One actor
per core, as its guide to simulations advises (by default a client takes two cores, and clients then run one after
another).
"""

import json
import sys
import time
from importlib.metadata import version

from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from learning import initial

CLIENTS = 10
path, rounds = sys.argv[1], int(sys.argv[2])
found: dict[str, object] = {}
app = ServerApp()


@app.main()
def serve(grid: Grid, context: Context) -> None:
    config = {"path": path}
    began = time.monotonic()
    result = FedAvg(min_train_nodes=CLIENTS, min_evaluate_nodes=CLIENTS, min_available_nodes=CLIENTS).start(
        grid,
        ArrayRecord(initial(path).state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord(config),
        evaluate_config=ConfigRecord(config),
    )
    found["rounds_s"] = time.monotonic() - began
    found["accuracy"] = result.evaluate_metrics_clientapp[rounds]["accuracy"]


if __name__ == "__main__":
    run_simulation(app, client_app, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    found["versions"] = " ".join(f"{name} {version(name)}" for name in ("flwr", "ray", "torch"))
    print(json.dumps(found))
