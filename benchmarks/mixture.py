"""FedEM for mixtures with three components against lean torch loops: the linear problem of
`linear.py`, the network of `cnn.py`.

The torch loops do the same work and no more: an E step over a client's rows, then one pass of
minibatch steps for all components, weighted by q. The linear one has its gradients by hand and all
components in one matrix.
"""

import jax
import numpy as np
import optax

from benchmarks import cnn, linear
from benchmarks.timing import interleaved, report
from covey import models
from covey.algorithms.mixture import mixture
from covey.core.algorithm import Algorithm
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

COMPONENTS, ROUNDS = 3, 3
Clients = list[tuple[np.ndarray, np.ndarray]]


def covey_rounds(method: Algorithm, clients: Clients, classes: int, rounds: int):
    data = FederatedData.from_clients(
        {str(place): one for place, one in enumerate(clients)}, classes=classes
    )
    engine = Simulation(method, data, seed=0)
    state = [engine.start()]

    def run():
        state[0], _ = engine.advance(state[0], rounds)
        jax.block_until_ready(state[0].server)

    return run


def torch_linear(clients: Clients):
    import torch

    torch.set_num_threads(2)
    tensors = [(torch.tensor(x), torch.tensor(y, dtype=torch.float32)) for x, y in clients]
    total = sum(len(y) for _, y in clients)
    pi = [torch.full((COMPONENTS,), 1 / COMPONENTS) for _ in clients]
    state = [(0.1 * torch.randn(linear.FEATURES, COMPONENTS), torch.zeros(COMPONENTS))]

    def one_round(weight, bias):
        sums = torch.zeros_like(weight), torch.zeros_like(bias)
        for place, (x, y) in enumerate(tensors):
            logit = x @ weight + bias
            q = torch.softmax(
                torch.log(pi[place]) + y[:, None] * logit - torch.nn.functional.softplus(logit), 1
            )
            pi[place] = q.mean(0)
            w, b = weight.clone(), bias.clone()
            velocity_w, velocity_b = torch.zeros_like(w), torch.zeros_like(b)
            order = torch.randperm(len(y))
            for at in range(0, len(y), linear.BATCH):
                batch = order[at : at + linear.BATCH]
                rows_ = x[batch]
                residual = q[batch] * (torch.sigmoid(rows_ @ w + b) - y[batch, None]) / len(batch)
                velocity_w.mul_(linear.MOMENTUM).add_(rows_.T @ residual).add_(
                    w, alpha=linear.DECAY
                )
                velocity_b.mul_(linear.MOMENTUM).add_(residual.sum(0)).add_(b, alpha=linear.DECAY)
                w.add_(velocity_w, alpha=-linear.STEP)
                b.add_(velocity_b, alpha=-linear.STEP)
            sums[0].add_(w, alpha=len(y) / total)
            sums[1].add_(b, alpha=len(y) / total)
        return sums

    def run():
        for _ in range(ROUNDS):
            state[0] = one_round(*state[0])

    return run


def torch_cnn(clients: Clients):
    import torch
    from torch import nn

    torch.set_num_threads(2)

    def network():
        convolutions = [
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        return nn.Sequential(
            *convolutions,
            nn.Flatten(),
            nn.Linear(1024, 2048),
            nn.ReLU(),
            nn.Linear(2048, cnn.CLASSES),
        )

    networks = [network() for _ in range(COMPONENTS)]
    tensors = [
        (torch.tensor(x.transpose(0, 3, 1, 2).copy()), torch.tensor(y).long()) for x, y in clients
    ]
    pi = [torch.full((COMPONENTS,), 1 / COMPONENTS) for _ in clients]
    starts = [
        [{name: value.clone() for name, value in one.state_dict().items()} for one in networks]
    ]

    def loss_of(one, x, y):
        return nn.functional.cross_entropy(one(x), y, reduction="none")

    def run():
        sums = [
            {name: torch.zeros_like(value) for name, value in start.items()} for start in starts[0]
        ]
        for place, (x, y) in enumerate(tensors):
            for one, start in zip(networks, starts[0], strict=True):
                one.load_state_dict(start)
            with torch.no_grad():
                losses = torch.stack(
                    [torch.cat([loss_of(one, *part) for part in parts(x, y)]) for one in networks],
                    1,
                )
            q = torch.softmax(torch.log(pi[place]) - losses, 1)
            pi[place] = q.mean(0)
            order = torch.randperm(len(y))
            for number, one in enumerate(networks):
                optimizer = torch.optim.SGD(one.parameters(), lr=cnn.STEP, momentum=cnn.MOMENTUM)
                for at in range(0, len(y), cnn.BATCH):
                    batch = order[at : at + cnn.BATCH]
                    optimizer.zero_grad()
                    (q[batch, number] * loss_of(one, x[batch], y[batch])).mean().backward()
                    optimizer.step()
                for name, value in one.state_dict().items():
                    sums[number][name] += value / cnn.CLIENTS
        starts[0] = sums

    def parts(x, y):
        return ((x[at : at + 256], y[at : at + 256]) for at in range(0, len(y), 256))

    return run


def main() -> None:
    clients = linear.rows()
    decayed = optax.chain(
        optax.add_decayed_weights(linear.DECAY), optax.sgd(linear.STEP, linear.MOMENTUM)
    )
    method = mixture(
        models.logistic(), components=COMPONENTS, client_optimizer=decayed, batch_size=linear.BATCH
    )
    ours = covey_rounds(method, clients, 2, ROUNDS)
    seconds = interleaved({"lean torch loop": torch_linear(clients), "covey": ours}, repeats=15)
    per_round = {name: values / ROUNDS for name, values in seconds.items()}
    rows = sum(len(y) for _, y in clients)
    report(
        f"FedEM for mixtures, M = 3, linear, {linear.CLIENTS} clients, {rows} rows, a round",
        per_round,
        "lean torch loop",
    )

    images = cnn.rows()
    sgd = optax.sgd(cnn.STEP, cnn.MOMENTUM)
    method = mixture(
        models.femnist_cnn(), components=COMPONENTS, client_optimizer=sgd, batch_size=cnn.BATCH
    )
    ours = covey_rounds(method, images, cnn.CLASSES, 1)
    seconds = interleaved({"lean torch loop": torch_cnn(images), "covey": ours}, repeats=15)
    report(
        f"FedEM for mixtures, M = 3, CNN, {cnn.CLIENTS} clients of {cnn.ROWS} images, a round",
        seconds,
        "lean torch loop",
    )


if __name__ == "__main__":
    main()
