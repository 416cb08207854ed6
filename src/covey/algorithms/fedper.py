"""FedPer: shared base layers and personal layers, trained together.

Arivazhagan, Aggarwal, Singh and Choudhary (2019), "Federated learning with personalization layers",
algorithms 1 and 2. It is FedRep with one local run for both parts instead of one after the other:

    client:  (phi_i, z_i) = optimiser steps on F_i from (phi, the z_i of its last round),    Delta_i = phi - phi_i
    server:  as in FedAvg, clients weighted by their rows

With one client, server step 1 and an optimiser without memory, phi and z move as in FedAvg on the
whole network.
"""

import optax

from covey.algorithms.averaging import Weighting, change
from covey.algorithms.fedrep import with_heads
from covey.core.algorithm import Algorithm
from covey.kernels.descent import descend, mean_gradient, schedule
from covey.models.mixed import MixedModel


def fedper(
    model: MixedModel,
    *,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    adapt_epochs: int = 50,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedPer: shared parameters and personal ones, trained together; options as in FedAvg.

    A client that never took part trains its personal part alone for `adapt_epochs` passes, by the
    client optimiser.
    """
    gradient = mean_gradient(lambda both, rows: model.log_likelihood(both.phi, both.head, rows))
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optax.sgd(0.1) if client_optimizer is None else client_optimizer

    def solve(key, at, data):
        end = descend(key, data, gradient, optimizer, plan, at)
        delta, info = change(at, end)
        return delta.phi, end.parameters.head, info

    return with_heads(
        "fedper",
        model,
        solve,
        head_optimizer=optimizer,
        adapt_plan=schedule(batch_size=batch_size, epochs=adapt_epochs, steps=None),
        server_optimizer=server_optimizer,
        weighting=weighting,
    )
