"""FedAvg+: FedAvg, then every client fine-tunes the global model on its own rows before it
predicts.

Jiang et al. (2019), "Improving federated learning personalization via model agnostic meta
learning"; the row "FedAvg+" of Marfoq et al. (2021), which tunes for one epoch. Training is FedAvg
to the letter; only what a client predicts with differs.
"""

from typing import NamedTuple

import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Weighting
from covey.algorithms.fedavg import fedavg
from covey.core.algorithm import Algorithm, Hooks
from covey.kernels.descent import descend, mean_gradient, schedule
from covey.models.model import Model


class Personal(NamedTuple):
    """A client's own, fine-tuned parameters."""

    parameters: PyTree


def fedavg_plus(
    model: Model,
    *,
    tune_epochs: int = 1,
    tune_optimizer: optax.GradientTransformation | None = None,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedAvg with `tune_epochs` local passes before prediction, by `tune_optimizer` (default: the
    client optimiser).
    """
    training = fedavg(
        model,
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        weighting=weighting,
    )
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=tune_epochs, steps=None)
    tuner = tune_optimizer or client_optimizer or optax.sgd(0.1)

    def adapt(key, parameters, data):
        return Personal(descend(key, data, gradient, tuner, plan, parameters).parameters)

    return training._replace(
        name="fedavg_plus",
        predict=lambda key, parameters, personal, x: model.predictive(personal.parameters, x),
        adapt=adapt,
        hooks=Hooks(adapt_before_evaluation=True),
    )
