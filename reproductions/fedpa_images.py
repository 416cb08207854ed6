"""FedPA beside FedAvg, AFO and MIME on photographs of clients with two labels each.

Al-Shedivat et al. (2021), table 3, in small. The search of settings is that of `search`: eight for
every method, more where the best is at an end, chosen by validation rows of seeds that are not
scored. So that all of it takes less than an hour on two cores, nearly everything is smaller than in
the paper, and only the order of the methods can be compared:

    photographs  CIFAR-10 at a quarter of their height and width, instead of EMNIST-62 and CIFAR-100
    clients      20 that all take part in every round, each with 100 training rows of 2 of the 10
                 labels, instead of 20 or 100 a round of 500 or 3,400
    network      one hidden layer of 32 units, instead of a CNN and a ResNet-18
    rounds       300 instead of 1,500

These clients drift: in exploratory runs FedAvg ended lower with ten epochs than with one, whatever
the rate of either. FedPA burns in until FedAvg with many epochs (ME) rises no more; a row says how
much it still rises. A sample of FedPA is the mean over one epoch, minibatches have 20 rows, and
clients and server have momentum 0.9. The server's step is 0.1, so that a change that is the same in
every round is applied in full. The rate that is searched is that of a client's steps. What a method
has of its own:

    FedPA-ME             rho, with the paper's choices for CIFAR-100 and EMNIST-62
    scaled FedAvg-ME     the same rho: the server's step is divided by rho_l after FedPA's burn-in
    AFO                  step of the server's Yogi, as in FedYogi of Reddi et al. (2021)
    MIME, MimeLite       momentum of the server, which clients apply instead of their own
    FedAvg-1E, FedAvg-ME, averaged FedAvg-ME     nothing, and a grid of rates twice as fine

Two methods tell what FedPA's gain is made of, if there is one. FedPA's delta is longer than that of
FedAvg by 1 / rho_l, and so is that of scaled FedAvg. FedPA's mean of samples averages the path of a
client, and so does averaged FedAvg, which is FedPA with rho = 0: the mean without the covariance.

The paper averages accuracies over the last 100 of 1,500 rounds, and so do we over the last sixth of
the rounds, looked at every ten: no round is chosen. All methods but FedAvg-1E make ten epochs per
round. MIME exchanges twice per round and takes two gradients per step. AFO's client rates do not
decay here. MimeLite is not in the paper. At the quick scale there are FedAvg-ME and FedPA-ME only.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import plotly.graph_objects as go

from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpa import fedpa
from covey.algorithms.mime import mime
from covey.algorithms.mimelite import mimelite
from covey.core.algorithm import Algorithm
from covey.data.federated import FederatedData
from covey.data.partition import classes_per_client
from covey.datasets.loaders import load
from covey.engines.record import Diverged
from covey.models import mlp
from covey.runs.launch import run as run_method
from reproductions.fedpop_images import Reproduced, halved
from reproductions.result import Claim, Report, Row, Scale, row, with_changes
from reproductions.search import Found, Plan, Setting, Split, fair_search, search_rows

ONCE, OFTEN, OURS = "FedAvg-1E", "FedAvg-ME", "FedPA-ME"
SCALED, AVERAGED = "scaled FedAvg-ME", "averaged FedAvg-ME"
OWN: dict[str, tuple[float, ...]] = {
    OFTEN: (),
    OURS: (0.01, 0.1),
    ONCE: (),
    SCALED: (0.01, 0.1),
    AVERAGED: (),
    "AFO": (0.001, 0.003),
    "MIME": (0.9, 0.99),
    "MimeLite": (0.9, 0.99),
}
PAPER = {  # EMNIST-62 after 1,500 rounds, MIME after 1,000
    ONCE: 86.5,
    OFTEN: 85.9,
    OURS: 87.3,
    "AFO": 86.8,
    "MIME": 84.9,
}
COLOURS = dict(
    zip(
        OWN,
        ("#1f6fb2", "#d1733b", "#7f7f7f", "#7fb2d9", "#3a9a8f", "#8a6bbf", "#b0413e", "#c9a227"),
        strict=True,
    )
)
EXCHANGES = {"MIME": 2}  # rounds of a run that make one of the paper; one for all others
MOMENTUM, SERVER_STEP, BATCH = 0.9, 0.1, 20
LAST = 6  # the last sixth of the looks is scored
FIRST_SEED = 10  # those below were used to explore


class Size(NamedTuple):
    """Size of the comparison.

    Attributes:
        methods: How many of the methods, in their order here.
        clients: Number of clients, at least five so that there are all labels.
        rows: Training rows of a client.
        hidden: Units of the hidden layer.
        epochs: Passes over a client's rows per round, and samples of FedPA.
        rounds: Rounds of a run.
        burn_in: Rounds before FedPA's first samples.
        every: Rounds from one look at the accuracy to the next.
        searched: Seeds by which settings are chosen.
        scored: Seeds that are scored.
    """

    methods: int
    clients: int
    rows: int
    hidden: int
    epochs: int
    rounds: int
    burn_in: int
    every: int
    searched: int
    scored: int


SIZES: dict[Scale, Size] = {
    "quick": Size(2, 5, 40, 8, 5, 100, 50, 10, searched=1, scored=3),
    "full": Size(len(OWN), 20, 100, 32, 10, 300, 150, 10, searched=2, scored=5),
}
Curves = dict[str, list[np.ndarray]]  # by method, test accuracies at each look, one per scored seed


def run(scale: Scale, report: Report) -> Reproduced:
    """Table 3: accuracy at the end; there FedAvg-ME is below FedAvg-1E and FedPA-ME above all."""
    size = with_changes(SIZES[scale])
    methods = dict(list(OWN.items())[: size.methods])
    first_scored = FIRST_SEED + size.searched
    plan = Plan(
        lowest=0.001,  # the paper's grid has these ends
        highest=0.1,
        rates=4,
        search_seeds=tuple(range(FIRST_SEED, first_scored)),
        scored_seeds=tuple(range(first_scored, first_scored + size.scored)),
    )
    curves: Curves = {name: [] for name in methods}
    found = fair_search(methods, partial(scored, size, curves), plan, report)
    gaps = differences(found)
    rows = [
        row(f"accuracy at the end, %, {name}", np.array(one.scores), PAPER.get(name))
        for name, one in found.items()
    ]
    rows += [row(f"{words}, points", gap) for words, gap in gaps.items()]
    rows.append(rise(curves[OFTEN], size))
    return [*rows, *search_rows(found)], claims_of(found, gaps), figure(curves, size)


def scored(
    size: Size, curves: Curves, name: str, setting: Setting, seed: int, split: Split
) -> float:
    """Accuracy at the end of a run, in percent; NaN where it diverges. Test rows also leave their
    curve, and there nothing is right where a run diverges.
    """
    values = curve(size, name, setting, seed, split)
    if split == "test":
        values = np.nan_to_num(values)
        curves[name].append(values)
    return at_the_end(values)


def curve(size: Size, name: str, setting: Setting, seed: int, split: Split) -> np.ndarray:
    """Accuracy of the rows of all clients at each look, in percent; NaN where the run diverges."""
    exchanges = EXCHANGES.get(name, 1)
    try:
        done = run_method(
            method_of(name, setting, size),
            photographs(size, seed),
            rounds=exchanges * size.rounds,
            seed=seed,
            chunk=size.clients,
            evaluate_every=exchanges * size.every,
            split=split,
            progress=False,
        )
    except Diverged:
        return np.full(size.rounds // size.every, np.nan)
    return 100 * done.metrics[f"{split}_accuracy"].dropna().to_numpy()


def at_the_end(values: np.ndarray) -> float:
    """The mean of the last looks."""
    return float(values[-max(1, len(values) // LAST) :].mean())


@lru_cache(maxsize=1)  # seeds of a setting share their compiled programs
def method_of(name: str, setting: Setting, size: Size) -> Algorithm:
    """A method with one of its settings."""
    model = mlp(hidden=(size.hidden,))
    own = 0.0 if setting.own is None else setting.own
    if name in ("MIME", "MimeLite"):
        make = mime if name == "MIME" else mimelite
        return make(
            model, step_size=setting.rate, momentum=own, epochs=size.epochs, batch_size=BATCH
        )
    common: dict[str, Any] = {
        "client_optimizer": optax.sgd(setting.rate, momentum=MOMENTUM),
        "batch_size": BATCH,
    }
    server = optax.sgd(SERVER_STEP, momentum=MOMENTUM)
    if name in (OURS, AVERAGED):
        return fedpa(
            model,
            samples=size.epochs,
            rho=own,
            burn_in_rounds=size.burn_in,
            normalised=False,
            server_optimizer=server,
            rank=0,
            **common,
        )
    if name == SCALED:
        server = optax.chain(longer(own, size), server)
    if name == "AFO":
        server = optax.yogi(own, b1=MOMENTUM, b2=0.99, eps=1e-3)
    epochs = 1 if name == ONCE else size.epochs
    return fedavg(model, epochs=epochs, server_optimizer=server, **common)


def longer(rho: float, size: Size) -> optax.GradientTransformation:
    """Changes divided by rho_l once FedPA samples, before they enter the server's momentum."""
    scale = 1 + (size.epochs - 1) * rho
    return optax.scale_by_schedule(lambda done: jnp.where(jnp.less(done, size.burn_in), 1.0, scale))


@lru_cache(maxsize=8)
def photographs(size: Size, seed: int) -> FederatedData:
    """Clients with two labels each: a fifth of their rows for validation, a fifth for the test."""
    x, y = _every_photograph()
    owner = classes_per_client(y, size.clients, classes=2, seed=seed)
    data = FederatedData.from_arrays(x, y, owner, classes=10)
    return data.split(0.2, 0.2, seed=seed).limited(train_rows=size.rows, seed=seed)


@lru_cache(maxsize=1)  # reading them takes longer than some runs
def _every_photograph() -> tuple[np.ndarray, np.ndarray]:
    """The training images of CIFAR-10 at a quarter of their height and width, and their labels."""
    rows = halved(halved(load("cifar10", partition="iid", clients=1, seed=0))).rows
    return np.asarray(rows.x), np.asarray(rows.y)


def differences(found: Mapping[str, Found]) -> dict[str, np.ndarray]:
    """Points per scored seed that one is above another in the paper, or should be."""
    scores = {name: np.array(one.scores) for name, one in found.items()}
    pairs = [(ONCE, OFTEN), *((OURS, name) for name in found if name != OURS)]
    return {
        f"{one} minus {other}": scores[one] - scores[other]
        for one, other in pairs
        if one in scores and other in scores
    }


def claims_of(found: Mapping[str, Found], gaps: Mapping[str, np.ndarray]) -> list[Claim]:
    """One claim per difference, but for methods that the search may have left below their best."""
    unsettled = {name for name, one in found.items() if one.at_edge}
    return [
        Claim(f"accuracy of {words}, points", float(gap.mean()), 0.0, bool(gap.mean() > 0))
        for words, gap in gaps.items()
        if not unsettled & set(words.split(" minus "))
    ]


def rise(curves: list[np.ndarray], size: Size) -> Row:
    """What FedAvg-ME still gains after FedPA's burn-in."""
    looks = size.burn_in // size.every
    gains = [at_the_end(one) - at_the_end(one[:looks]) for one in curves]
    return row(f"points that {OFTEN} rises after round {size.burn_in}", np.array(gains))


def figure(curves: Curves, size: Size) -> go.Figure:
    """Mean test accuracy over seeds against rounds, with the end of the burn-in."""
    chart = go.Figure()
    for name, of in curves.items():
        x = size.every * np.arange(1, len(of[0]) + 1)
        chart.add_trace(
            go.Scatter(x=x, y=np.mean(of, axis=0), name=name, line={"color": COLOURS[name]})
        )
    chart.add_vline(x=size.burn_in, line={"dash": "dot", "color": "#7f7f7f"})
    chart.update_layout(
        title="CIFAR-10, two labels per client, settings found by the same search for all",
        template="plotly_white",
        xaxis_title="round; FedPA samples to the right of the dotted line",
        yaxis_title="test accuracy, percent",
    )
    return chart
