"""All benchmarks, one after the other: `make benchmarks`. Keep the machine quiet."""

import os
import platform
from importlib.metadata import version

from benchmarks import (
    cnn,
    deploy,
    fald,
    linear,
    marginal,
    million,
    mixed,
    mixture,
    posterior,
    scale,
)


def main() -> None:
    packages = ", ".join(f"{name} {version(name)}" for name in ("covey", "jax", "torch"))
    print(f"{packages}; Python {platform.python_version()}, {os.cpu_count()} cores")
    linear.main()
    cnn.main()
    fald.main()
    mixed.main()
    marginal.main()
    mixture.main()
    posterior.main()
    million.main()
    deploy.main()
    scale.main()


if __name__ == "__main__":
    main()
