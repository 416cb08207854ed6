"""FedAvg+: FedAvg, and a client fine-tunes the shared model before it predicts."""

from typing import NamedTuple

import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Weighting, local_work, optimizer_or
from covey.algorithms.fedavg import fedavg
from covey.core.algorithm import Algorithm, Hooks
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class Personal(NamedTuple):
    """A client's fine-tuned parameters."""

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
    """FedAvg+: FedAvg, then each client fine-tunes the shared model on its rows before predicting.

        training:    FedAvg, unchanged
        prediction:  v_i = tune optimiser from theta on D_i, for `tune_epochs` passes

    The fine-tuned v_i never leaves the client; it is made from the newest theta at every
    evaluation.

    Args:
        model: Model to train, from `covey.models`.
        tune_epochs: Passes over the client's training rows for fine-tuning.
        tune_optimizer: Optax optimiser of the fine-tuning. Default: the client optimiser.
        client_optimizer: Optax optimiser of the local steps in training. Default: SGD with step
            size 0.1.
        server_optimizer: Optax optimiser that takes the averaged change as its gradient. Default:
            the plain average.
        batch_size: Rows per minibatch, in training and in fine-tuning; None uses all rows.
        epochs: Passes over the client's rows per round of training.
        steps: Minibatch steps per round of training, in place of `epochs`.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. Its clients have no state between rounds.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> method = covey.fedavg_plus(covey.models.linear(), tune_epochs=20)
        >>> run = covey.run(method, data, rounds=5, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.05
        True

    Reference: Jiang et al. (2019), Improving federated learning personalization via model agnostic
    meta learning; the row "FedAvg+" of Marfoq et al. (2021), which tunes for one epoch.

    Departures from the papers: the optimiser of the fine-tuning may differ from that of the
    training.
    """
    need(model, Model, "fedavg_plus")
    plan = local_work("fedavg_plus", batch_size=batch_size, epochs=tune_epochs, prefix="tune_")
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
    otherwise = optax.sgd(0.1) if client_optimizer is None else client_optimizer
    tuner = optimizer_or(otherwise, tune_optimizer, "tune_optimizer", "fedavg_plus")

    def adapt(key, parameters, data):
        return Personal(descend(key, data, gradient, tuner, plan, parameters).parameters)

    return training._replace(
        name="fedavg_plus",
        predict=lambda key, parameters, personal, x: model.predictive(personal.parameters, x),
        adapt=adapt,
        hooks=Hooks(adapt_before_evaluation=True),
    )
