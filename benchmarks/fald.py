"""FA-LD on Gaussians in the plane: 50 clients, 100 local steps, 300 chains, against plain numpy and
a torch loop.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import interleaved, report
from covey.algorithms.fald import fald
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.models import from_density

CLIENTS, STEPS, CHAINS, ROUNDS, STEP = 50, 100, 300, 100, 1e-3
SPREAD = np.float32(np.sqrt(2 * STEP * CLIENTS))


def gaussians() -> tuple[np.ndarray, np.ndarray]:
    """Means and curvatures of the clients' f^c."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(CLIENTS, 2, 2))
    return rng.normal(size=(CLIENTS, 2)).astype("f4"), (
        root @ root.transpose(0, 2, 1) / 2 + np.eye(2)
    ).astype("f4")


def covey_rounds(mean: np.ndarray, curvature: np.ndarray):
    def log_density(theta, rows):
        # By coordinate: arrays whose last axis is the chains, not the two parameters, are what
        # vector instructions like.
        one, two = theta[0] - rows.x[:, 0], theta[1] - rows.x[:, 1]
        bend = rows.y
        return (
            -0.5
            / CLIENTS
            * (
                bend[:, 0, 0] * one * one
                + 2 * bend[:, 0, 1] * one * two
                + bend[:, 1, 1] * two * two
            )
        )

    data = FederatedData.from_rows(Rows(mean, curvature), np.ones(CLIENTS, int))
    model = from_density(log_density, jnp.zeros(2), "gaussian")
    engine = Simulation(
        fald(model, step_size=STEP, local_steps=STEPS, chains=CHAINS, keep=1), data, seed=0
    )
    state = [engine.start()]

    def run():
        state[0], _ = engine.advance(state[0], ROUNDS)
        jax.block_until_ready(state[0].server)

    return run


def numpy_rounds(mean: np.ndarray, curvature: np.ndarray):
    rng = np.random.default_rng(1)
    state = [np.zeros((CHAINS, 2), "f4")]

    def run():
        for _ in range(ROUNDS):
            theta = np.repeat(state[0][:, None], CLIENTS, axis=1)
            for _ in range(STEPS):
                slope = np.einsum("nij,rnj->rni", curvature, theta - mean)
                theta = (
                    theta
                    - np.float32(STEP) * slope
                    + SPREAD * rng.standard_normal(theta.shape, dtype="f4")
                )
            state[0] = theta.mean(1)

    return run


def torch_rounds(mean: np.ndarray, curvature: np.ndarray):
    import torch

    torch.set_num_threads(2)
    centre, bend = torch.tensor(mean), torch.tensor(curvature)
    state = [torch.zeros(CHAINS, 2)]

    def run():
        for _ in range(ROUNDS):
            theta = state[0][:, None].expand(CHAINS, CLIENTS, 2).clone()
            for _ in range(STEPS):
                slope = ((theta - centre).unsqueeze(2) * bend).sum(-1)
                theta.add_(slope, alpha=-STEP).add_(torch.randn(theta.shape), alpha=float(SPREAD))
            state[0] = theta.mean(1)

    return run


def main() -> None:
    problem = gaussians()
    contenders = {
        "numpy": numpy_rounds(*problem),
        "torch loop": torch_rounds(*problem),
        "covey": covey_rounds(*problem),
    }
    seconds = interleaved(contenders, repeats=5)
    title = f"FA-LD, {CLIENTS} clients, K = {STEPS}, {CHAINS} chains, {ROUNDS} rounds"
    report(title, seconds, "numpy")
    report(title, seconds, "torch loop")


if __name__ == "__main__":
    main()
