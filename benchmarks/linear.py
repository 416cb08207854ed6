"""FedAvg, linear model: 300 clients, 67,758 rows, 150 features, batches of 128, one epoch a round,
against a lean torch loop.

The torch loop is the shortest that does the same work: tensors in memory, no DataLoader, no
autograd, gradients by hand.
"""

import jax
import numpy as np
import optax

from benchmarks.timing import interleaved, report
from covey import models
from covey.algorithms.fedavg import fedavg
from covey.core.metrics import merge
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

CLIENTS, FEATURES, BATCH, STEP, MOMENTUM, DECAY = 300, 150, 128, 0.1, 0.9, 5e-4
SIZES_SEED = 16423  # the sizes min(50 + lognormal(4, 2), 1000) then add up to 67,758
ROUNDS = 5


def rows() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(SIZES_SEED)
    sizes = np.minimum(50 + rng.lognormal(4, 2, CLIENTS).astype(int), 1000)
    truth = rng.uniform(-1, 1, FEATURES)
    xs = [rng.uniform(-1, 1, (n, FEATURES)).astype(np.float32) for n in sizes]
    return [(x, (x @ truth + 0.1 * rng.normal(size=len(x)) > 0).astype(np.int32)) for x in xs]


def covey_rounds(clients: list[tuple[np.ndarray, np.ndarray]]):
    data = FederatedData.from_clients(
        {str(place): one for place, one in enumerate(clients)}, classes=2
    )
    optimizer = optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(STEP, MOMENTUM))
    engine = Simulation(
        fedavg(models.logistic(), client_optimizer=optimizer, batch_size=BATCH), data, seed=0
    )
    state = [engine.start()]

    def run():
        state[0], _ = engine.advance(state[0], ROUNDS)
        jax.block_until_ready(state[0].server)

    return run, lambda: engine.evaluate(state[0], "train")


def torch_rounds(clients: list[tuple[np.ndarray, np.ndarray]]):
    import torch

    torch.set_num_threads(2)
    tensors = [(torch.tensor(x), torch.tensor(y, dtype=torch.float32)) for x, y in clients]
    total = sum(len(y) for _, y in clients)
    state = [(torch.zeros(FEATURES), torch.zeros(()))]

    def one_round(weight, bias):
        sums = torch.zeros_like(weight), torch.zeros_like(bias)
        for x, y in tensors:
            w, b = weight.clone(), bias.clone()
            velocity_w, velocity_b = torch.zeros_like(w), torch.zeros_like(b)
            order = torch.randperm(len(y))
            for at in range(0, len(y), BATCH):
                batch = order[at : at + BATCH]
                rows_ = x[batch]
                residual = (torch.sigmoid(rows_ @ w + b) - y[batch]) / len(batch)
                velocity_w.mul_(MOMENTUM).add_(residual @ rows_).add_(w, alpha=DECAY)
                velocity_b.mul_(MOMENTUM).add_(residual.sum()).add_(b, alpha=DECAY)
                w.add_(velocity_w, alpha=-STEP)
                b.add_(velocity_b, alpha=-STEP)
            sums[0].add_(w, alpha=len(y) / total)
            sums[1].add_(b, alpha=len(y) / total)
        return sums

    def run():
        for _ in range(ROUNDS):
            state[0] = one_round(*state[0])

    def accuracy():
        weight, bias = state[0]
        return (
            sum(float((((x @ weight + bias) > 0) == (y > 0.5)).sum()) for x, y in tensors) / total
        )

    return run, accuracy


def main() -> None:
    clients = rows()
    covey_run, covey_metrics = covey_rounds(clients)
    torch_run, torch_accuracy = torch_rounds(clients)
    seconds = interleaved({"lean torch loop": torch_run, "covey": covey_run}, repeats=15)
    per_round = {name: values / ROUNDS for name, values in seconds.items()}
    report(
        f"FedAvg, linear, {CLIENTS} clients, {sum(len(y) for _, y in clients)} rows, a round",
        per_round,
        "lean torch loop",
    )
    accuracy = merge(covey_metrics())["accuracy"].value()
    print(
        f"  training accuracy after equal rounds: torch {torch_accuracy():.4f}, covey "
        f"{accuracy:.4f}"
    )


if __name__ == "__main__":
    main()
