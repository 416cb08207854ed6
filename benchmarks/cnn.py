"""FedAvg with the two-convolution network of LEAF on made images, against a lean torch loop with
the same work.
"""

import jax
import numpy as np
import optax

from benchmarks.timing import interleaved, report
from covey import models
from covey.algorithms.fedavg import fedavg
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

CLIENTS, ROWS, BATCH, STEP, MOMENTUM, CLASSES = 4, 512, 128, 0.05, 0.9, 62


def rows() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        (rng.random((ROWS, 28, 28, 1), np.float32), rng.integers(0, CLASSES, ROWS).astype(np.int32))
        for _ in range(CLIENTS)
    ]


def covey_round(clients: list[tuple[np.ndarray, np.ndarray]]):
    data = FederatedData.from_clients(
        {str(place): one for place, one in enumerate(clients)}, classes=CLASSES
    )
    method = fedavg(
        models.femnist_cnn(), client_optimizer=optax.sgd(STEP, MOMENTUM), batch_size=BATCH
    )
    engine = Simulation(method, data, seed=0)
    state = [engine.start()]

    def run():
        state[0], _ = engine.advance(state[0], 1)
        jax.block_until_ready(state[0].server)

    return run


def torch_round(clients: list[tuple[np.ndarray, np.ndarray]]):
    import torch
    from torch import nn

    torch.set_num_threads(2)
    convolutions = [
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    network = nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, CLASSES)
    )
    tensors = [
        (torch.tensor(x.transpose(0, 3, 1, 2).copy()), torch.tensor(y).long()) for x, y in clients
    ]
    start = [{name: value.clone() for name, value in network.state_dict().items()}]

    def run():
        sums = {name: torch.zeros_like(value) for name, value in start[0].items()}
        for x, y in tensors:
            network.load_state_dict(start[0])
            optimizer = torch.optim.SGD(network.parameters(), lr=STEP, momentum=MOMENTUM)
            order = torch.randperm(len(y))
            for at in range(0, len(y), BATCH):
                batch = order[at : at + BATCH]
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
            for name, value in network.state_dict().items():
                sums[name] += value / CLIENTS
        start[0] = sums

    return run


def main() -> None:
    clients = rows()
    seconds = interleaved(
        {"lean torch loop": torch_round(clients), "covey": covey_round(clients)}, repeats=15
    )
    report(f"FedAvg, CNN, {CLIENTS} clients of {ROWS} images, a round", seconds, "lean torch loop")


if __name__ == "__main__":
    main()
