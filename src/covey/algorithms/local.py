"""Local: every client trains alone and nothing is sent. The row that a federation has to beat.

Clients start from the same initial parameters and go on from their own at each round they take part
in.
"""

from typing import NamedTuple

import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Info
from covey.core.algorithm import Algorithm, Empty, Local, keep
from covey.kernels.descent import descend, mean_gradient, schedule
from covey.models.model import Model


class Start(NamedTuple):
    """The common starting point; the server never changes it."""

    parameters: PyTree


class Personal(NamedTuple):
    """A client's own parameters."""

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
    """Training alone. A client that never took part trains for `adapt_epochs` passes before it is
    evaluated.
    """
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    adapt_plan = schedule(batch_size=batch_size, epochs=adapt_epochs, steps=None)
    optimizer = optax.sgd(0.1) if client_optimizer is None else client_optimizer

    def client(key, start, personal, data):
        end = descend(key, data, gradient, optimizer, plan, personal.parameters)
        return Local(Empty(), Personal(end.parameters), Info(end.loss, end.steps))

    def adapt(key, start, data):
        return Personal(
            descend(key, data, gradient, optimizer, adapt_plan, start.parameters).parameters
        )

    return Algorithm(
        name="local",
        init=lambda key, spec: Start(model.init(key, spec)),
        init_client=lambda key, start, data: Personal(start.parameters),
        broadcast=lambda start: start,
        client=client,
        commit=keep,
        server=lambda key, start, aggregate: (start, Empty()),
        predict=lambda key, start, personal, x: model.predictive(personal.parameters, x),
        adapt=adapt,
    )
