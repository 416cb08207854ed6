"""FedAvg of 100 small clients in pfl-research, with PyTorch."""

import sys
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from turns import CLIENTS, FEATURES, ROWS, STEP, clients, say


class Logistic(torch.nn.Linear):
    def loss(self, x, y, **_):
        return torch.nn.functional.binary_cross_entropy_with_logits(self(x)[:, 0], y)

    def metrics(self, x, y, **_):
        return {}


class Turns(TrainingProcessCallback):
    """Waits after the rounds of a turn until the next turn is asked for."""

    def __init__(self) -> None:
        self.left, self.count, self.start = 2, 0, 0.0

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.left -= 1
        if self.left == 0:
            took = time.perf_counter() - self.start
            say(f"SECONDS {took / self.count}" if self.count else "READY")
            line = sys.stdin.readline()
            if not line:
                return True, Metrics()
            self.left = self.count = int(line)
            self.start = time.perf_counter()
        return False, Metrics()


def main() -> None:
    torch.set_num_threads(2)
    data = {
        str(at): [torch.tensor(x), torch.tensor(y, dtype=torch.float32)]
        for at, (x, y) in enumerate(clients())
    }
    sampler = get_user_sampler("minimize_reuse", list(data))
    dataset = FederatedDataset(lambda name: Dataset(data[name], user_id=name), sampler)
    module = Logistic(FEATURES, 1)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=CLIENTS,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=dataset, val_data=None),
        model,
        NNTrainHyperParams(local_batch_size=ROWS, local_num_epochs=1, local_learning_rate=STEP),
        NNEvalHyperParams(local_batch_size=ROWS),
        [Turns()],
    )


if __name__ == "__main__":
    main()
