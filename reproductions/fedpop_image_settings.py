"""Sizes, settings and methods of FedPop's experiments on images."""

from typing import NamedTuple

import optax

from covey.algorithms.apfl import apfl
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedrep import fedrep
from covey.core.algorithm import Algorithm
from covey.models import cifar_cnn, gaussian, mixed_cifar_cnn

PASSES = 11
BATCH = 10
SMALL = 25  # training images of a client where they are few
DEVIATION = 0.1  # of the effects, to start from; about that of a network's own first weights
COLOURS = {
    "FedSOUL": "#1f6fb2",
    "FedRep": "#d1733b",
    "APFL": "#4f9d69",
    "FedAvg": "#b9b9b9",
}
# Learning rates that a method may choose from: of the law of the effects for FedSOUL, of the body
# for FedRep.
SETTINGS: dict[str, tuple[float, ...]] = {
    "FedSOUL": (0.03, 0.1),
    "FedRep": (0.1, 0.2),
    "APFL": (0.1, 0.03),
    "FedAvg": (0.1, 0.03),
}


class Problem(NamedTuple):
    """Clients with images of some `classes`: at most `most` to train on (None: all), and `few` for
    a share of the clients.
    """

    classes: int
    few: int | None = None
    share: float = 0.0
    most: int | None = SMALL
    images: str = "cifar10"

    @property
    def label(self) -> str:
        """For tables and figures."""
        some = "" if self.few is None else f", {100 * self.share:.0f} % with {self.few} images"
        return f"{self.images}, {self.classes} classes{some}"


class Size(NamedTuple):
    """How large a run is.

    halved: colour images at half their height and width.
    every: rounds from one look at the validation rows to the next.
    candidates: how many settings a method may choose from.
    """

    seeds: int
    clients: int
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    halved: bool
    rounds: int
    every: int
    candidates: int
    cohort: int = 10


FIRST_SEED = 10  # those below were used to look for settings
QUICK = Size(
    seeds=1,
    clients=20,
    channels=(8, 16),
    hidden=(32,),
    halved=True,
    rounds=60,
    every=30,
    candidates=1,
)
FULL = Size(
    seeds=3,
    clients=50,
    channels=(16, 32),
    hidden=(64,),
    halved=True,
    rounds=150,
    every=50,
    candidates=2,
)


def method_of(name: str, setting: float, size: Size, rows: int) -> Algorithm:
    """A method with one of its settings, for clients with up to so many training rows.

    FedSOUL's step is the variance that the law of the effects starts from: a chain then forgets in
    one step what no row speaks of, and draws of a round are hardly correlated. Rows bend the
    posterior further, so many of them need a shorter step; the law may become wider and not
    narrower, as then the step would be too long. With more than a few images phi moves along a pass
    over minibatches at the client, as FedRep's body does; with few, once a round by Adam at the
    server. FedRep's head learns at a quarter of its body's rate.
    """
    whole = cifar_cnn(channels=size.channels, hidden=size.hidden)
    cut = mixed_cifar_cnn(channels=size.channels, hidden=size.hidden)

    def sgd(rate: float) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=0.5)

    if name == "FedSOUL":
        many = rows > SMALL
        return fedpop(
            cut,
            step_size=DEVIATION**2 * min(1.0, SMALL / rows),
            draws=PASSES - 1,
            effects=gaussian(
                covariance="isotropic",
                initial_scale=DEVIATION,
                scale_bounds=(DEVIATION, 10 * DEVIATION),
            ),
            phi_rate=0.01 if many else None,
            batch_size=BATCH if many else None,
            phi_optimizer=None if many else optax.adam(3e-3),
            beta_optimizer=optax.adam(setting),
        )
    if name == "FedRep":
        return fedrep(
            cut,
            head_optimizer=sgd(setting / 4),
            body_optimizer=sgd(setting),
            batch_size=BATCH,
            head_epochs=PASSES - 1,
            body_epochs=1,
        )
    if name == "APFL":
        return apfl(
            whole,
            client_optimizer=sgd(setting),
            batch_size=BATCH,
            epochs=PASSES // 2,
            alpha=0.5,
            alpha_step=setting,
        )
    return fedavg(whole, client_optimizer=sgd(setting), batch_size=BATCH, epochs=PASSES)
