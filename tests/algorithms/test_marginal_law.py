"""Draws of the law at a maximum: names and values belong together."""

import jax
import jax.numpy as jnp
import numpy as np

from covey.algorithms.marginal.fit import draw_law
from covey.algorithms.marginal.law import Law


def test_draws_are_nan_where_the_data_do_not_determine_a_parameter():
    def describe(flat):  # in another order than that of the alphabet
        return {"weights": flat[:2], "noise": flat[2], "intercept": flat[3]}

    law = Law(
        estimate="ml",
        point=np.arange(4.0),
        spread=np.eye(4),
        describe=describe,
        names=("weights[a]", "weights[b]", "noise", "intercept"),
        unknown=("weights[b]",),
        zero=(),
        log_likelihood=0.0,
        parameters=4,
        rows=10,
        settled=True,
    )
    drawn = jax.tree.map(np.asarray, draw_law(jax.random.key(0), law, 5))
    assert np.isnan(drawn["weights"]).all(0).tolist() == [False, True]
    assert np.isfinite(drawn["noise"]).all()
    assert np.isfinite(drawn["intercept"]).all()
    assert jnp.asarray(drawn["noise"]).shape == (5,)
