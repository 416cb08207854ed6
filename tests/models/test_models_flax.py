"""Flax NNX modules as models: the same likelihood as by hand, methods that train them, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import covey
from covey.core.shard import Rows, Spec
from covey.models import from_flax, split_network

nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed: pip install 'covey[flax]'")


class Network(nnx.Module):
    def __init__(self, outputs, rngs):
        self.hidden = nnx.Linear(3, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs)])
        self.output = nnx.Linear(4, outputs, rngs=rngs)

    def __call__(self, x):
        x = self.dropout(jnp.tanh(self.hidden(x)))
        return self.output(jnp.tanh(self.layers[0](x)))


def build(outputs):
    return lambda rngs: Network(outputs, rngs)


def spec(classes, y_dtype):
    rows = Rows(jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((), y_dtype))
    return Spec(rows, classes)


def by_hand(params, x):
    """The outputs, in NumPy and without dropout."""
    for layer in (params["hidden"], params["layers"][0]):
        x = np.tanh(x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    return x @ np.asarray(params["output"]["kernel"]) + np.asarray(params["output"]["bias"])


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("outputs", [4, 1])
def test_the_likelihood_is_that_of_the_module(batched, outputs):
    classes = 4 if outputs == 4 else 2
    model = from_flax(build(outputs), batched=batched, name="mine")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 3)).astype(np.float32), random.integers(0, classes, 5)
    params = model.init(jax.random.key(1), spec(classes, jnp.int32))
    output = by_hand(params, x)
    logits = output if outputs > 1 else np.column_stack([np.zeros(5), output[:, 0]])
    expected = scipy.special.log_softmax(logits, axis=-1)[np.arange(5), y]
    rows = Rows(jnp.asarray(x), jnp.asarray(y))
    found, gradient = jax.jit(
        lambda params: (
            model.log_likelihood(params, rows),
            jax.grad(lambda p: model.log_likelihood(p, rows).sum())(params),
        )
    )(params)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))


def test_keys_make_other_parameters_and_the_module_keeps_none():
    model = from_flax(build(2))
    one, other = (model.init(jax.random.key(at), spec(2, jnp.int32)) for at in (1, 2))
    again = model.init(jax.random.key(1), spec(2, jnp.int32))
    assert not np.allclose(one["output"]["kernel"], other["output"]["kernel"])
    np.testing.assert_array_equal(one["output"]["kernel"], again["output"]["kernel"])
    x = jnp.ones((2, 3))
    first = model.predictive(one, x).mean
    model.predictive(other, x)  # leaves nothing behind
    np.testing.assert_array_equal(model.predictive(one, x).mean, first)


def test_it_is_trained_checkpointed_and_cut(tmp_path):
    random, tables = np.random.default_rng(0), {}
    for site in "abc":
        x = random.normal(size=(40, 3)).astype(np.float32)
        tables[site] = x, (x[:, 0] > 0).astype(int)
    data = covey.FederatedData.from_clients(tables, classes=2)
    model = from_flax(build(2))
    method = covey.fedavg(model, epochs=2)
    run = covey.run(method, data, rounds=15, seed=1, out=tmp_path / "run", progress=False)
    assert run.evaluate(split="train").pooled["accuracy"] > 0.9
    again = covey.run(
        method, data, rounds=15, seed=1, out=tmp_path / "run", resume=True, progress=False
    )
    np.testing.assert_array_equal(
        run.state.parameters["layers"][0]["kernel"], again.state.parameters["layers"][0]["kernel"]
    )
    cut = split_network(model, personal="output")
    assert cut.init_effects(jax.random.key(0), data.spec).shape == (10,)


def test_modules_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3, 5\).*must be \(3, 4\)"):
        from_flax(build(5), name="mine").init(jax.random.key(0), spec(4, jnp.int32))

    class Normalised(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(3, rngs=rngs)

        def __call__(self, x):
            return self.norm(x)

    with pytest.raises(ValueError, match=r"norm\.mean is neither a parameter.*nnx.LayerNorm"):
        from_flax(Normalised)
