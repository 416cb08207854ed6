"""FedEM and VR-FedEM on mixtures of Gaussians: synthetic data, digits, and the cost of compression
where clients differ.

Dieuleveut, Fort, Moulines and Robin (2021), section 4 and figures 1 and 3. An epoch is as many
evaluations of E[s | row] as there are rows: a round of FedEM has p n b of them, and `inner` rounds
of VR-FedEM have p n (m + 2 b inner), with m rows per client. h is the mean field, EM's step, at all
rows of all clients, and H the server's estimate of it. The paper's figures come without values;
what they show is stated as claims.

    synthetic    10,000 rows in the plane, two components, 100 clients, p = 0.75,
                 gamma = alpha = 0.01, rand-k of omega = 1, b = 20, and for VR-FedEM b = 5 and 20
                 rounds per outer loop
    digits       70,000 MNIST digits by their first 20 principal components, 100 clients of 700,
                 ten components with one covariance; b = 20 for both methods, gamma = 0.001; in 32
                 bits, and dithered to 4 bits per value; dealt at random as in the paper, and
                 sorted by digit, so that clients are unlike; EM without memories beside them. What
                 4 bits cost is in units of what the run with 32 bits gains over its start
    compression  three codecs, clients that are alike and that are not, with memories and without;
                 all rows in each round, so that only compression and absence add noise

Synthetic data are in double precision: single precision would hide how far the mean field falls.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plotly.graph_objects as go
from jaxtyping import Array, PyTree
from plotly.subplots import make_subplots

from covey.algorithms.em import em
from covey.algorithms.fedem import fedem, over_all_rows
from covey.algorithms.vr_fedem import vr_fedem
from covey.channel import dithering, identity, natural, rand_k
from covey.core.algorithm import Algorithm
from covey.core.channel import Channel
from covey.core.cohort import bernoulli
from covey.core.shard import Rows, whole
from covey.data.federated import FederatedData
from covey.data.summary import random_rows, summarise
from covey.datasets.loaders import load
from covey.engines.simulate import Simulation
from covey.models import gaussian_mixture
from covey.models.latent import LatentModel
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

COLOURS = ("#1f6fb2", "#d1733b", "#4f9d69", "#7f7f7f")
MEANS = np.array([[-1.0, 0.0], [1.5, 1.0]])
COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.8]])
SHARES = np.array([0.3, 0.7])
START = np.array([[-0.5, 0.5], [0.5, 0.5]])


class Trajectory(NamedTuple):
    """The path of a run: norm of h, objective and weights at some rounds; norm of H and bits sent
    at every round.
    """

    rounds: np.ndarray
    h: np.ndarray
    objective: np.ndarray
    weights: np.ndarray
    big_h: np.ndarray
    bits: np.ndarray


class Made(NamedTuple):
    """Size of the run on synthetic data."""

    seeds: int
    clients: int
    epochs: int


class Digits(NamedTuple):
    """Size of the run on digits."""

    clients: int
    epochs: int
    step_size: float


class Compared(NamedTuple):
    """Size of the comparison of codecs: how many of them, and the shares of clients that take
    part.
    """

    seeds: int
    rounds: int
    shares: tuple[float, ...]
    codecs: int


MADE: dict[Scale, Made] = {"quick": Made(1, 100, 200), "full": Made(5, 100, 500)}
DIGITS: dict[Scale, Digits] = {"quick": Digits(100, 30, 0.003), "full": Digits(100, 200, 0.001)}
COMPARED: dict[Scale, Compared] = {
    "quick": Compared(1, 600, (0.75,), 1),
    "full": Compared(3, 1000, (1.0, 0.75), 3),
}
KINDS = ("alike", "unlike")
COST = 0.01  # of the gain, that 4 bits per value may cost
CODECS: dict[str, Channel] = {
    "dithering, 4 bits": dithering(levels=7),
    "rand-k, 3 of 10": rand_k(k=3),
    "natural, 12 bits": natural(),
}
Reproduced: TypeAlias = tuple[list[Row], list[Claim], go.Figure]


def run_made(scale: Scale, report: Report) -> Reproduced:
    """Figure 1: the variance of FedEM stays, that of VR-FedEM vanishes."""
    size = with_changes(MADE[scale])
    with jax.enable_x64(True):
        paths = {name: [] for name in ("FedEM", "VR-FedEM")}
        for seed in range(size.seeds):
            data, model = points(seed, size.clients, spread=0.0), known()
            for name, (method, rounds) in both(
                model, rows=100, epochs=size.epochs, share=0.75
            ).items():
                report(f"{name}, seed {seed + 1} of {size.seeds}")
                paths[name].append(
                    followed(
                        method, model, data, rounds, seed=seed, share=0.75, channel=rand_k(k=3)
                    )
                )
    return _variance(paths, size.epochs)


def run_digits(scale: Scale, report: Report) -> Reproduced:
    """Figure 3, and the same with 4 bits per value, with unlike clients, and without memories."""
    size = with_changes(DIGITS[scale])
    channels = {"32 bits": identity(), "4 bits": dithering(levels=7)}
    paths: dict[str, Trajectory] = {}
    for kind in KINDS:
        data = components_of_digits(size.clients, kind)
        model = first_step(data)
        rate = memory_rate(channels["4 bits"], model, data)
        methods = both(
            model,
            rows=700,
            epochs=size.epochs,
            step_size=size.step_size,
            rate=rate,
            batch=20,
            reduced_batch=20,
            inner=35,
        )
        _, rounds = methods["FedEM"]
        methods["EM"] = (em(model, step_size=size.step_size, batch_size=20), rounds)
        for name, (method, rounds) in methods.items():
            for bits, channel in channels.items():
                report(f"{name} in {bits}, clients {kind}, {rounds} rounds")
                paths[f"{name}, {bits}, clients {kind}"] = followed(
                    method, model, data, rounds, seed=0, channel=channel
                )
    return _digits(paths, size.epochs)


def run_compared(scale: Scale, report: Report) -> Reproduced:
    """Compressed EM with and without memories: the mean field against the bits that were sent."""
    size = with_changes(COMPARED[scale])
    cells = [
        (kind, share, codec)
        for kind in KINDS
        for share in size.shares
        for codec in list(CODECS)[: size.codecs]
    ]
    found: dict[tuple[str, float, str, str], list[Trajectory]] = {}
    with jax.enable_x64(True):
        for seed in range(size.seeds):
            data = {"alike": points(seed, 20, spread=0.0), "unlike": points(seed, 20, spread=2.0)}
            model = tied()
            for kind, share, codec in cells:
                report(
                    f"{codec}, clients {kind}, {share:.0%} take part, "
                    f"seed {seed + 1} of {size.seeds}"
                )
                rate = memory_rate(CODECS[codec], model, data[kind])
                methods = {
                    "memories": fedem(model, step_size=0.2, memory_rate=rate),
                    "none": em(model, step_size=0.2),
                }
                for name, method in methods.items():
                    path = followed(
                        method,
                        model,
                        data[kind],
                        size.rounds,
                        seed=seed,
                        share=share,
                        channel=CODECS[codec],
                    )
                    found.setdefault((kind, share, codec, name), []).append(path)
    return _compared(found)


def known() -> LatentModel:
    """Two components whose covariance is known."""
    return gaussian_mixture(
        components=2, covariance="known", means=START, start_covariance=COVARIANCE
    )


def tied() -> LatentModel:
    """Two components with one covariance."""
    return gaussian_mixture(
        components=2, covariance="tied", means=START, start_covariance=COVARIANCE
    )


def points(seed: int, clients: int, *, spread: float, rows: int = 100) -> FederatedData:
    """Clients with rows of the two components, in shares whose log-odds vary with the deviation
    `spread`.
    """
    rng = np.random.default_rng(seed)
    odds = np.log(SHARES[1] / SHARES[0]) + spread * rng.normal(size=clients)
    of_second = rng.random((clients, rows)) < 1 / (1 + np.exp(-odds[:, None]))
    x = MEANS[of_second.astype(int)] + rng.multivariate_normal(
        np.zeros(2), COVARIANCE, (clients, rows)
    )
    return FederatedData.from_arrays(
        x.reshape(-1, 2), np.zeros(clients * rows), np.repeat(np.arange(clients), rows)
    )


def components_of_digits(clients: int, kind: str, dimensions: int = 20) -> FederatedData:
    """700 digits per client by the principal components of all digits: dealt at random, or sorted
    by digit, so that most unlike clients have a single one.
    """
    data = load("mnist", split="all", partition="iid", clients=100, seed=0)
    x = np.asarray(data.rows.x, np.float32).reshape(len(data.rows.y), -1) / 255
    x = x[:, x.any(axis=0)]
    x -= x.mean(0)
    _, axes = np.linalg.eigh(x.T @ x)
    y = np.asarray(data.rows.y)
    order = np.argsort(y, kind="stable") if kind == "unlike" else np.arange(len(y))
    rows = Rows((x @ axes[:, ::-1][:, :dimensions])[order], y[order])
    dealt = FederatedData.from_rows(rows, data.counts("train"), classes=10)
    return dealt.subset(np.linspace(0, dealt.clients - 1, clients).astype(int))


def first_step(data: FederatedData, components: int = 10) -> LatentModel:
    """The model at the start of the paper: statistics of all rows, given random rows as means and
    the covariance of all.
    """
    moments = summarise(
        data, groups=1, at_least=1, seed=0
    )  # sums over clients, as the statistics are
    shared = {"components": components, "second_moment": moments.second_moment}
    model = gaussian_mixture(
        **shared, means=random_rows(data, components, seed=0), start_covariance=moments.covariance
    )
    theta = model.init(jax.random.key(0), data.spec)
    found = over_all_rows(model, theta, whole(data.rows))
    theta, _ = model.maximise(found.statistics, theta)
    means, covariance = np.asarray(theta.means), np.asarray(theta.covariance)
    return gaussian_mixture(
        **shared, weights=np.asarray(theta.weights), means=means, start_covariance=covariance
    )


def both(
    model: LatentModel,
    *,
    rows: int,
    epochs: int,
    share: float = 1.0,
    step_size: float = 0.01,
    rate: float = 0.01,
    batch: int = 20,
    reduced_batch: int = 5,
    inner: int = 20,
) -> dict[str, tuple[Algorithm, int]]:
    """The two methods, and the rounds that make up these epochs when a share of the clients takes
    part in each.
    """
    plain = epochs * rows / (batch * share)
    reduced = epochs * rows * inner / ((rows + 2 * reduced_batch * inner) * share)
    return {
        "FedEM": (
            fedem(model, step_size=step_size, memory_rate=rate, batch_size=batch),
            round(plain),
        ),
        "VR-FedEM": (
            vr_fedem(
                model, step_size=step_size, memory_rate=rate, batch_size=reduced_batch, inner=inner
            ),
            round(reduced),
        ),
    }


def memory_rate(channel: Channel, model: LatentModel, data: FederatedData) -> float:
    """The largest alpha that theory allows, 1 / (1 + omega), for what clients send."""
    if channel.omega is None:
        raise ValueError("memory_rate: the channel is biased, there is no omega")
    return 1 / (1 + channel.omega(model.expected(model.init(jax.random.key(0), data.spec))))


def followed(
    method: Algorithm,
    model: LatentModel,
    data: FederatedData,
    rounds: int,
    *,
    seed: int,
    share: float = 1.0,
    channel: Channel,
    looks: int = 50,
) -> Trajectory:
    """Run a method and follow its path."""
    engine = Simulation(method, data, seed=seed, cohort=bernoulli(share), channel=channel)
    every = whole(jax.tree.map(jnp.asarray, data.rows))

    @jax.jit
    def look(statistics: PyTree, theta: PyTree) -> tuple[Array, Array]:
        found = over_all_rows(model, theta, every)
        gap = jax.tree.map(jnp.subtract, found.statistics, statistics)
        return optax.tree.norm(gap), found.loss + model.penalty(theta)

    state, lines, seen = engine.start(), [], []
    for stop in np.unique(np.linspace(0, rounds, looks + 1).astype(int)):
        state, new = engine.advance(state, int(stop) - state.round)
        lines += new
        seen.append(
            (
                int(stop),
                *look(state.server.statistics, state.server.theta),
                state.server.theta.weights,
            )
        )
    at, h, objective, weights = (
        np.asarray(column, np.float64) for column in zip(*seen, strict=True)
    )
    return Trajectory(
        at.astype(int),
        h,
        objective,
        weights,
        np.array([line["field_norm"] for line in lines]),
        np.array([line["bits_up"] for line in lines], np.float64),
    )


def _variance(paths: dict[str, list[Trajectory]], epochs: int) -> Reproduced:
    """The norms of H at the end; the variance of FedEM stays, that of VR-FedEM vanishes with the
    mean field.
    """
    ends = {name: np.array([_tail(path) for path in of]) for name, of in paths.items()}
    fields = {name: np.array([path.h[-1] for path in of]) for name, of in paths.items()}
    rows = [
        row(f"norm of H, {name}, mean of the last tenth", values) for name, values in ends.items()
    ]
    rows += [row(f"norm of h, {name}, at the end", values) for name, values in fields.items()]
    ratio = float(ends["FedEM"].mean() / ends["VR-FedEM"].mean())
    claims = [Claim("norm of H, FedEM over VR-FedEM, at the end", ratio, 10.0, ratio > 10)]
    chart = make_subplots(cols=2, subplot_titles=list(paths))
    for column, of in enumerate(paths.values(), start=1):
        _field(chart, of[0], epochs, column)
        chart.update_xaxes(title="epochs", row=1, col=column)
    chart.update_layout(title="Squared norms of H and of the mean field h", template="plotly_white")
    return rows, claims, chart


def _digits(paths: dict[str, Trajectory], epochs: int) -> Reproduced:
    """Weights and mean field; and whether 4 bits per value reach what 32 reach."""
    rows, claims = [], []
    for name, path in paths.items():
        rows += [
            row(f"objective, {name}", path.objective[-1:]),
            row(f"decrease of the objective, {name}", path.objective[:1] - path.objective[-1:]),
            row(f"Mbit sent by all clients, {name}", np.array([path.bits.sum() / 1e6])),
            row(f"norm of H, {name}, mean of the last tenth", np.array([_tail(path)])),
            row(f"norm of h, {name}, at the end", path.h[-1:]),
        ]
    for kind in KINDS:
        for name in ("FedEM", "VR-FedEM", "EM"):
            plain, few = (
                paths[f"{name}, {bits}, clients {kind}"] for bits in ("32 bits", "4 bits")
            )
            cost = cost_of(few, plain)
            label = f"{name}: cost of 4 bits, share of the decrease, clients {kind}"
            if name != "EM":
                bits = float(few.bits.sum() / plain.bits.sum())
                claims += [
                    Claim(label, cost, COST, cost < COST),
                    Claim(f"{name}: bits sent, 4 over 32, {kind}", bits, 1 / 6, bits <= 1 / 6),
                ]
            elif kind == "unlike":  # what the memories are for
                claims.append(Claim(f"{label}, more than", cost, COST, cost > COST))
            else:
                rows.append(Row(label, None, cost, None, 1))
    return rows, claims, _weights(paths, epochs)


def cost_of(few: Trajectory, plain: Trajectory) -> float:
    """How far compression ends from the objective without, over the decrease without."""
    return float(
        abs(few.objective[-1] - plain.objective[-1]) / (plain.objective[0] - plain.objective[-1])
    )


def _compared(found: dict[tuple[str, float, str, str], list[Trajectory]]) -> Reproduced:
    """The mean field at the end, and how few bits it took."""
    rows, claims = [], []
    for (kind, share, codec, name), paths in found.items():
        ends = np.array([path.h[-1] for path in paths])
        with_or_without = "with memories" if name == "memories" else "without memories"
        rows.append(
            row(
                f"norm of h, {codec}, clients {kind}, {share:.0%} take part, {with_or_without}",
                ends,
            )
        )
        if kind == "unlike" and codec.startswith("dithering"):
            worst, bound = (ends.max(), 1e-10) if name == "memories" else (ends.min(), 1e-3)
            holds = bool(worst < bound) if name == "memories" else bool(worst > bound)
            claims.append(
                Claim(
                    f"norm of h {with_or_without}, 4 bits, {share:.0%} take part",
                    float(worst),
                    bound,
                    holds,
                )
            )
    return rows, claims, _against_bits(found)


def _tail(path: Trajectory) -> float:
    """The norm of H, on average over the last tenth of the rounds."""
    return float(path.big_h[-max(len(path.big_h) // 10, 1) :].mean())


def _field(chart: go.Figure, path: Trajectory, epochs: int, column: int) -> None:
    """Squared norms against epochs: H at each round, thinned to what a screen shows, and h where it
    was looked at.
    """
    rounds = np.arange(len(path.big_h))[:: max(len(path.big_h) // 500, 1)]
    for name, at, values, colour in (
        ("H", rounds, path.big_h[rounds], COLOURS[1]),
        ("h", path.rounds, path.h, COLOURS[0]),
    ):
        line = go.Scatter(
            x=at * epochs / path.rounds[-1],
            y=values**2,
            name=name,
            line={"color": colour},
            showlegend=column == 1,
        )
        chart.add_trace(line, row=1, col=column)
    chart.update_yaxes(type="log", row=1, col=column)


def _weights(paths: dict[str, Trajectory], epochs: int) -> go.Figure:
    """The weights of the components and the norms as in the paper, without compression; the
    objective of all runs with unlike clients, dotted where they are compressed.
    """
    plain = {
        name.removesuffix(", 32 bits, clients alike"): path
        for name, path in paths.items()
        if name.endswith("32 bits, clients alike") and not name.startswith("EM")
    }
    titles = [text for name in plain for text in (f"weights, {name}", f"squared norms, {name}")]
    chart = make_subplots(
        cols=2 * len(plain) + 1, subplot_titles=[*titles, "objective, clients unlike"]
    )
    for index, path in enumerate(plain.values()):
        for component, weights in enumerate(path.weights.T):
            line = go.Scatter(
                x=path.rounds * epochs / path.rounds[-1],
                y=weights,
                name=str(component),
                showlegend=False,
            )
            chart.add_trace(line, row=1, col=2 * index + 1)
        _field(chart, path, epochs, 2 * index + 2)
    unlike = {name: path for name, path in paths.items() if name.endswith("unlike")}
    for index, (name, path) in enumerate(unlike.items()):
        line = go.Scatter(
            x=path.rounds * epochs / path.rounds[-1],
            y=path.objective,
            name=name.removesuffix(", clients unlike"),
            line={"color": COLOURS[index // 2], "dash": ("solid", "dot")[index % 2]},
        )
        chart.add_trace(line, row=1, col=len(titles))
    chart.update_xaxes(title="epochs")
    chart.update_layout(title="Mixture of ten Gaussians, MNIST", template="plotly_white")
    return chart


def _against_bits(found: dict[tuple[str, float, str, str], list[Trajectory]]) -> go.Figure:
    """The mean field of the first seed against bits; full lines with memories, dotted ones
    without.
    """
    chart = make_subplots(
        cols=2, subplot_titles=[f"clients {kind}" for kind in KINDS], shared_yaxes=True
    )
    colours: dict[str, str] = {}
    shown = max(share for _, share, _, _ in found)
    for (kind, share, codec, name), paths in found.items():
        if share < shown:
            continue
        colour = colours.setdefault(codec, COLOURS[len(colours)])
        sent = np.append(0.0, np.cumsum(paths[0].bits))[paths[0].rounds]
        dash = "solid" if name == "memories" else "dot"
        label = codec if name == "memories" else f"{codec}, no memories"
        line = go.Scatter(
            x=sent / 1e6, y=paths[0].h, name=label, line={"color": colour, "dash": dash}
        )
        chart.add_trace(line.update(showlegend=kind == "alike"), row=1, col=1 + KINDS.index(kind))
    chart.update_xaxes(title="Mbit sent by all clients")
    chart.update_yaxes(type="log", title="norm of h", col=1)
    chart.update_layout(title="Compressed EM with memories and without", template="plotly_white")
    return chart
