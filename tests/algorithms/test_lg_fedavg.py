"""LG-FedAvg is FedPer with the two sides exchanged."""

import jax
import numpy as np
import optax
import pytest
from least_squares import DATA, STEP, fit

from covey import models
from covey.algorithms.fedper import fedper
from covey.algorithms.lg_fedavg import lg_fedavg
from covey.models.split import join

OPTIONS = {"client_optimizer": optax.sgd(STEP), "batch_size": 8}
NETWORK = models.mlp(hidden=(3,), outcome="number")


def test_it_is_fedper_with_the_sides_exchanged():
    state, lines = fit(lg_fedavg(NETWORK, **OPTIONS), 2)
    exchanged = fedper(models.split_network(NETWORK, personal="hidden"), **OPTIONS)
    other, _ = fit(exchanged, 2)
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(one, two)
    # Clients send three weights and an intercept, with their own weight, and keep 3 x 3 + 3.
    assert {line["bits_up"] for line in lines} == {3 * 32 * (4 + 1)}
    assert state.nodes.state.head.shape == (3, 12)
    whole = jax.eval_shape(NETWORK.init, jax.random.key(0), DATA.spec)
    made = join(state.server.shared.parameters, state.nodes.state.head[0])
    assert jax.tree.structure(made) == jax.tree.structure(whole)


@pytest.mark.slow
def test_the_other_cut_is_fedper_itself():
    state, _ = fit(lg_fedavg(NETWORK, shared="hidden", **OPTIONS), 2)
    other, _ = fit(fedper(models.split_network(NETWORK), **OPTIONS), 2)
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(one, two)


def test_bad_names():
    with pytest.raises(ValueError, match="shared: this network has no field 'head'"):
        fit(lg_fedavg(NETWORK, shared="head"), 1)
    with pytest.raises(ValueError, match="nothing is personal; say personal=\\(\\) to mean it"):
        fit(lg_fedavg(NETWORK, shared=("hidden", "output")), 1)
    with pytest.raises(ValueError, match="lg_fedavg: epochs must be at least 1, got 0"):
        lg_fedavg(NETWORK, epochs=0)
