"""FedAvg of 100 small clients in Flower's simulation, whose clients run in Ray actors.

The client takes its one gradient step in numpy: what is measured is Flower.
"""

import logging

import numpy as np
from flwr.client import ClientApp
from flwr.common import ArrayRecord, MetricRecord, RecordDict
from flwr.common import Message as FlowerMessage
from flwr.server import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import CLIENTS, FEATURES, ROWS, STEP, serve
from turns import clients as all_clients

logging.getLogger("flwr").setLevel(logging.ERROR)
client_app, server_app = ClientApp(), ServerApp()
_data = all_clients()


@client_app.train()
def train(message, context):
    x, y = _data[int(context.node_config["partition-id"])]
    weight, bias = message.content["arrays"].to_numpy_ndarrays()
    residual = (1 / (1 + np.exp(-(x @ weight + bias))) - y) / len(y)
    new = [weight - STEP * residual @ x, bias - STEP * residual.sum(keepdims=True)]
    content = {
        "arrays": ArrayRecord([np.asarray(leaf, np.float32) for leaf in new]),
        "metrics": MetricRecord({"num-examples": ROWS}),
    }
    return FlowerMessage(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid, context):
    strategy = FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS, min_train_nodes=1
    )
    arrays = ArrayRecord([np.zeros(FEATURES, np.float32), np.zeros(1, np.float32)])

    def rounds(count: int) -> None:
        nonlocal arrays
        arrays = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=count).arrays

    rounds(2)
    serve(rounds)


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
