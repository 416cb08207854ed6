"""Local training: every client alone, nothing is sent."""

from typing import NamedTuple

import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Info, local_work, optimizer_or
from covey.core.algorithm import Algorithm, Empty, Local, keep
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class Start(NamedTuple):
    """The initial parameters of all clients; the server never changes them."""

    parameters: PyTree


class Personal(NamedTuple):
    """A client's parameters."""

    parameters: PyTree


def local(
    model: Model,
    *,
    client_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    adapt_epochs: int = 50,
) -> Algorithm:
    """Local training: every client trains alone; the baseline that a federation has to beat.

        client:  theta_i <- local optimiser from theta_i on D_i
        server:  nothing is sent

    Clients start from the same initial parameters and continue from their own in each round that
    they take part in.

    Args:
        model: Model to train, from `covey.models`.
        client_optimizer: Optax optimiser of the local steps, initialised anew in every round.
            Default: SGD with step size 0.1.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.
        adapt_epochs: Passes over its rows that an unseen client trains for before it is evaluated.

    Returns:
        A method for `covey.run`. A client's state is its model.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(3, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.local(covey.models.linear()), data, rounds=40, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.05
        True

    Reference: none; it is the usual baseline of the papers on federated learning.
    """
    need(model, Model, "local")
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work("local", batch_size=batch_size, epochs=epochs, steps=steps)
    adapt_plan = local_work("local", batch_size=batch_size, epochs=adapt_epochs, prefix="adapt_")
    optimizer = optimizer_or(optax.sgd(0.1), client_optimizer, "client_optimizer", "local")

    def client(key, start, personal, data):
        end = descend(key, data, gradient, optimizer, plan, personal.parameters)
        return Local(Empty(), Personal(end.parameters), Info(end.loss, end.steps))

    def adapt(key, start, data):
        end = descend(key, data, gradient, optimizer, adapt_plan, start.parameters)
        return Personal(end.parameters)

    return Algorithm(
        name="local",
        init=lambda key, spec: Start(model.init(key, spec)),
        broadcast=lambda start: start,
        server=lambda key, start, aggregate: (start, Empty()),
        init_client=lambda key, start, data: Personal(start.parameters),
        client=client,
        commit=keep,
        predict=lambda key, start, personal, x: model.predictive(personal.parameters, x),
        adapt=adapt,
    )
