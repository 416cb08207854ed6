"""Shapes of a method are found by the trace that its rounds use."""

import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.engines.simulate import Simulation


def traces(*, fixed):
    """How often a client's log-likelihood is traced until the first round is done."""
    plain, count = covey.models.mixed_linear(scale=1.0, groups="g"), []

    def counted(phi, z, rows):
        count.append(rows.y.shape)
        return plain.log_likelihood(phi, z, rows)

    method = covey.marginal(plain._replace(log_likelihood=counted))
    method = method._replace(hooks=method.hooks._replace(fixed_shapes=fixed))
    x = np.column_stack([np.linspace(-1, 1, 12), np.tile([0.0, 1.0], 6)])
    clients = {name: (x[at::3], x[at::3, 0] + at) for at, name in enumerate("abc")}
    data = covey.FederatedData.from_clients(clients, features=["x", "g"])
    engine = Simulation(method, data, seed=0)
    state, _ = engine.advance(engine.start(), 1)
    return len(count), set(count), jnp.asarray(state.server.rows)


@pytest.mark.slow
def test_a_method_with_fixed_shapes_is_traced_for_one_size_of_client_only():
    several, sizes, rows = traces(fixed=False)
    once, size, same = traces(fixed=True)
    assert {shape for shape in size if shape[0] > 3} == {(16,)}  # three rows try the model's form
    assert (1,) in sizes
    assert (2,) in sizes
    assert once < several
    assert float(rows) == float(same)
