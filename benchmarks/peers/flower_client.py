"""The client of `flower_run.py`; a module of its own, so that Ray's actors import it and keep its data loaded."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from learning import Autoencoder, accuracy, records, test_set, train

torch.set_num_threads(1)  # an actor has one core
app = ClientApp()


def received(message: Message, context: Context) -> tuple[Autoencoder, torch.Tensor, str]:
    """Return the global model, the client's records and where the workload lies."""
    path = str(message.content["config"]["path"])
    samples = records(path, int(context.node_config["partition-id"]))
    net = Autoencoder(samples.shape[1])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, samples, path


@app.train()
def local_epochs(message: Message, context: Context) -> Message:
    net, samples, _ = received(message, context)
    train(net, samples)
    weight = MetricRecord({"num-examples": len(samples)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": weight}), reply_to=message)


@app.evaluate()
def judge(message: Message, context: Context) -> Message:
    net, samples, path = received(message, context)
    found = {"num-examples": len(samples), "accuracy": accuracy(net, samples, *test_set(path))}
    return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)
