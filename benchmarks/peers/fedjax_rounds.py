"""FedAvg of 100 small clients in FedJAX."""

import fedjax
import jax
import jax.numpy as jnp
from turns import FEATURES, ROWS, STEP, clients, serve


def loss(params, batch, rng):
    logits = batch["x"] @ params["weight"] + params["bias"]
    return jnp.mean(jax.nn.softplus(logits) - batch["y"] * logits)


def main() -> None:
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(STEP),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=ROWS, num_epochs=1),
    )
    datasets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in clients()]
    state = algorithm.init({"weight": jnp.zeros(FEATURES), "bias": jnp.zeros(())})
    key = jax.random.PRNGKey(0)

    def rounds(count: int) -> None:
        nonlocal state, key
        for _ in range(count):
            key, *keys = jax.random.split(key, len(datasets) + 1)
            cohort = [(b"%d" % at, one, keys[at]) for at, one in enumerate(datasets)]
            state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)

    rounds(2)
    serve(rounds)


if __name__ == "__main__":
    main()
