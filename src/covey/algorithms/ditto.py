"""Ditto: FedAvg, and a personal model near the shared one for each client."""

import math
from typing import NamedTuple

import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Weighting, local_work, optimizer_or
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedprox import with_penalty
from covey.core.algorithm import Algorithm, Local, keep
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class Personal(NamedTuple):
    """A client's personal model, v_i."""

    parameters: PyTree


def ditto(
    model: Model,
    *,
    proximal: int | float = 1.0,
    client_optimizer: optax.GradientTransformation | None = None,
    personal_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    personal_epochs: int = 1,
    personal_steps: int | None = None,
    adapt_epochs: int = 50,
    weighting: Weighting = "rows",
) -> Algorithm:
    """Ditto: the shared model is FedAvg's, and each client trains a personal one near it.

    w is trained as if there were no personal models. Beside it, client i minimises

        h_i(v) = F_i(v) + (lambda / 2) ||v - w||^2

    by steps v_i <- v_i - eta (grad F_i(v_i) + lambda (v_i - w)) from the v_i of its last round, w
    the broadcast of this round. lambda = 0 is local training; as lambda grows v_i becomes the
    shared model. v_i starts as the w of the client's first round and never leaves the client.

    Args:
        model: Model to train, from `covey.models`.
        proximal: Strength of the penalty (lambda in the paper), at least 0.
        client_optimizer: Optax optimiser of the steps on w. Default: SGD with step size 0.1.
        personal_optimizer: Optax optimiser of the steps on v_i. SGD needs a step size well below
            2 / lambda. Default: SGD with step size 0.1, or 1 / lambda where that is smaller.
        server_optimizer: Optax optimiser that takes the averaged change of w as its gradient.
            Default: the plain average.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round for w.
        steps: Minibatch steps per round for w, in place of `epochs`.
        personal_epochs: Passes over the client's rows per round for v_i.
        personal_steps: Minibatch steps per round for v_i, in place of `personal_epochs` (s in the
            paper).
        adapt_epochs: Passes over its rows that an unseen client trains its personal model for.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal") in w.

    Returns:
        A method for `covey.run`. A client's state is its personal model.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=3, rows=10, dimensions=2, heterogeneity=0.5)
        >>> method = covey.ditto(covey.models.linear(), proximal=0.1)
        >>> covey.run(method, data, rounds=60, seed=1).evaluate(split="train").pooled["mse"] < 0.05
        True

    Reference: Li, Hu, Beirami and Smith (2021), Ditto: fair and robust federated learning through
    personalization, algorithm 1.

    Departures from the paper: clients count by their rows unless `weighting="equal"`, any Optax
    optimiser may take the steps, and an unseen client trains v_i for `adapt_epochs` passes.
    """
    need(model, Model, "ditto")
    if not 0 <= proximal < math.inf:
        raise ValueError(f"ditto: proximal must be at least 0 and finite, got {proximal:g}")
    shared = fedavg(
        model,
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        weighting=weighting,
    )
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work(
        "ditto",
        batch_size=batch_size,
        epochs=personal_epochs,
        steps=personal_steps,
        prefix="personal_",
    )
    adapt_plan = local_work("ditto", batch_size=batch_size, epochs=adapt_epochs, prefix="adapt_")
    stable = optax.sgd(0.1 if proximal <= 10 else 1 / proximal)
    optimizer = optimizer_or(stable, personal_optimizer, "personal_optimizer", "ditto")

    def trained(key, w, start, data, plan):
        near = with_penalty(gradient, proximal, w)
        return Personal(descend(key, data, near, optimizer, plan, start).parameters)

    def client(key, w, personal, data):
        # One key for both models: minibatches are those of FedAvg and of Local.
        up, _, info, weight = shared.client(key, w, (), data)
        return Local(up, trained(key, w, personal.parameters, data, plan), info, weight)

    return shared._replace(
        name="ditto",
        init_client=lambda key, w, data: Personal(w),
        client=client,
        commit=keep,
        predict=lambda key, w, personal, x: model.predictive(personal.parameters, x),
        adapt=lambda key, w, data: trained(key, w, w, data, adapt_plan),
    )
