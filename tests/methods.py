"""Every method of the package, small enough to be walked through every engine."""

from collections.abc import Callable

import optax

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedavg_plus import fedavg_plus
from covey.algorithms.fedprox import fedprox
from covey.algorithms.local import local
from covey.algorithms.mb_sgd import mb_sgd
from covey.core.algorithm import Algorithm

SGD = optax.sgd(0.05, momentum=0.9)

METHODS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: fedavg(models.linear(), client_optimizer=SGD, batch_size=8),
    "mb_sgd": lambda: mb_sgd(models.linear(), batch_size=8),
    "fedprox": lambda: fedprox(models.linear(), proximal=0.1, client_optimizer=SGD, batch_size=8),
    "local": lambda: local(models.linear(), client_optimizer=SGD, batch_size=8, adapt_epochs=2),
    "fedavg_plus": lambda: fedavg_plus(models.linear(), client_optimizer=SGD, batch_size=8),
}

# The same methods by other options: what a configuration can reach is walked through too.
VARIANTS: dict[str, Callable[[], Algorithm]] = {
    "fedavg-steps": lambda: fedavg(models.linear(), steps=5, batch_size=16),
    "fedavg-full-batch": lambda: fedavg(models.linear(), batch_size=None, epochs=3, weighting="equal"),
    "fedadam": lambda: fedavg(models.linear(), server_optimizer=optax.adam(0.05), batch_size=8, epochs=2),
    "mb_sgd-full": lambda: mb_sgd(models.linear()),
}
