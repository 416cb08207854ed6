"""FedPop's synthetic problem: 100 clients, 20 columns, 2 effects, one draw a round (FedSOUL);
beside it, what the authors' takes.

Their code solves for a mode instead of sampling and needs 274 ms a round on a machine like ours
(measured once; it is not run here). Rounds are dispatched one by one, or many in one program.
"""

import jax
import numpy as np

from benchmarks.timing import interleaved
from covey.algorithms.fedpop import fedpop
from covey.datasets.synthetic import shared_features
from covey.engines.simulate import Simulation
from covey.models import linear_map

AUTHORS_MS = 274.0
TOGETHER = 128


def main() -> None:
    data, _ = shared_features(0)
    engine = Simulation(
        fedpop(linear_map(effects=2, scale=0.1), step_size=1e-4, draws=1), data, seed=0
    )
    state = [engine.start()]

    def rounds(number: int):
        state[0], _ = engine.advance(state[0], number)
        jax.block_until_ready(state[0].server)

    seconds = interleaved(
        {"one by one": lambda: rounds(1), "in one program": lambda: rounds(TOGETHER)}, repeats=50
    )
    print("\nFedPop, synthetic problem, M = 1, a round")
    for name, values in seconds.items():
        each = 1e3 * np.median(values) / (TOGETHER if name == "in one program" else 1)
        print(
            f"  {name:34s} {each:9.3f} ms   {AUTHORS_MS / each:.0f}x the authors' {AUTHORS_MS:g} ms"
        )


if __name__ == "__main__":
    main()
