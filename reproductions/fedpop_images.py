"""FedPop on images: clients with few of their images, calibration, and images of another kind.

Kotelevskii et al. (2022), section 5 and S3. Clients have images of S of the ten classes. A network
of two convolutions and dense layers is shared up to its last layer, which is each client's own: the
random effects of FedPop. FedSOUL is FedPop with the unadjusted Langevin algorithm, a Gaussian law
of the effects whose mean and deviation are learned, and predictions that average over draws. It
samples: the authors' configurations for images have no noise in the chain, and choose models by
test accuracy.

All methods get the same rounds, cohorts and work: a client in a round takes the gradient of each of
its rows `PASSES` times. FedRep's are ten for the head and one for the body, FedSOUL's ten
transitions and one for phi, FedAvg's eleven epochs; APFL, with two gradients a
step, has five epochs and a minibatch for alpha. Every method may choose from the same number of
settings, on the validation rows of the first seed of the first cell with as many classes, and every
run is scored where its validation accuracy was best of those looked at. Test rows choose nothing.
What there is to choose from was explored at length for FedSOUL, less for FedRep and hardly for the
others, on data of other seeds than those that are scored here.

Colour images have half their height and width, and the network is small: two cores allow no more,
the numbers are below the paper's, and only the order of the methods can be compared. The quick
scale has few clients and rounds and shows that everything runs; its order means little. The paper's
figures have no numbers.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import jax
import numpy as np
import plotly.graph_objects as go

from covey.core.algorithm import Algorithm
from covey.core.cohort import uniform
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.datasets.loaders import load
from covey.engines.record import Diverged
from covey.inference.out_of_distribution import auroc, entropy
from covey.runs.evaluation import Evaluation
from covey.runs.launch import run as run_method
from covey.runs.run import Run
from reproductions.fedpop_image_figures import bars, histograms, reliability
from reproductions.fedpop_image_settings import (
    FIRST_SEED,
    FULL,
    QUICK,
    SETTINGS,
    Problem,
    Size,
    method_of,
)
from reproductions.result import Claim, Report, Row, Scale, row, with_changes
from reproductions.search import Looked, best_of

Reproduced: TypeAlias = tuple[list[Row], list[Claim], go.Figure]


def run_small(scale: Scale, report: Report) -> Reproduced:
    """Figures 3 and S7: 5 or 10 training images for 10, 50 or 90 % of the clients, 25 for the
    others.
    """
    if scale == "quick":
        return small([Problem(5, 5, 0.9)], with_changes(QUICK), report)
    return small(
        [Problem(s, few, share) for s in (5, 2) for few in (5, 10) for share in (0.5, 0.1, 0.9)],
        with_changes(FULL),
        report,
    )


def run_calibration(scale: Scale, report: Report) -> Reproduced:
    """Figures 4 (right) and S9: how often a label is right that a model is so sure of."""
    if scale == "quick":
        return calibration([Problem(5, 5, 0.5)], with_changes(QUICK), report)
    return calibration([Problem(2, 5, 0.5), Problem(5, 5, 0.5)], with_changes(FULL), report)


def run_strange(scale: Scale, report: Report) -> Reproduced:
    """Figures 4 (left) and S8: predictive entropy of images of a kind that no client has seen."""
    digits = {Problem(5, images="mnist"): ("fashion_mnist", "notmnist")}
    return (
        strange(digits, with_changes(QUICK), report)
        if scale == "quick"
        else strange(digits | {Problem(5): ("svhn",)}, with_changes(FULL), report)
    )


def small(cells: list[Problem], size: Size, report: Report) -> Reproduced:
    """Mean test accuracy over clients in each cell; FedSOUL should be above FedRep in all."""
    scores = _accuracies(
        _grid(cells, ("FedSOUL", "FedRep", "APFL", "FedAvg"), size, report, _on_test)
    )
    rows = [
        row(f"accuracy, {name}, {cell.label}", values)
        for cell, of in scores.items()
        for name, values in of.items()
    ]
    claims = [_beats(cell, of, "FedRep") for cell, of in scores.items()]
    return rows, claims, bars(scores)


def calibration(cells: list[Problem], size: Size, report: Report) -> Reproduced:
    """The expected calibration error of all test rows together; FedSOUL's should be below
    FedRep's.
    """
    found = _grid(cells, ("FedSOUL", "FedRep"), size, report, _on_test)
    rows, claims = [], []
    for cell, of in found.items():
        errors = {
            name: np.array([one.pooled["ece"] for one in seeds]) for name, seeds in of.items()
        }
        rows += [row(f"calibration error, {name}, {cell.label}", errors[name]) for name in of]
        rows += [
            row(f"accuracy, {name}, {cell.label}", np.array([accuracy_of(one) for one in seeds]))
            for name, seeds in of.items()
        ]
        ratio = float(errors["FedSOUL"].mean() / errors["FedRep"].mean())
        claims.append(
            Claim(f"calibration error of FedSOUL over FedRep, {cell.label}", ratio, 1.0, ratio < 1)
        )
    return rows, claims, reliability(found)


def strange(cells: dict[Problem, tuple[str, ...]], size: Size, report: Report) -> Reproduced:
    """AUROC of the entropy, a client's own test images against strange ones: the mean over clients.

    The paper finds the two kinds of entropy well apart for MNIST, and not so clear for CIFAR-10
    against SVHN: no claim there.
    """
    rows, claims, curves = [], [], {}
    for cell, others in cells.items():
        pictures = {other: strangers(other, size) for other in others}
        found = _grid(
            [cell],
            ("FedSOUL", "FedRep"),
            size,
            report,
            lambda done, pictures=pictures: entropies(done, pictures),
        )
        for name, seeds in found[cell].items():
            for other in others:
                areas = np.array(
                    [
                        np.mean([auroc(one["own"], one[other]) for one in clients])
                        for clients in seeds
                    ]
                )
                rows.append(
                    row(f"AUROC of the entropy, {name}, {cell.images} against {other}", areas)
                )
                if name == "FedSOUL" and cell.images == "mnist":
                    area = float(areas.mean())
                    claims.append(
                        Claim(
                            f"AUROC of FedSOUL's entropy, mnist against {other}",
                            area,
                            0.75,
                            area > 0.75,
                        )
                    )
        curves[cell] = found[cell]["FedSOUL"][0]
    return rows, claims, histograms(curves)


def images_of(problem: Problem, size: Size, seed: int) -> FederatedData:
    """Clients' images: a fifth of each client's for validation, a fifth for the test, of the others
    as many as the problem says.

    The rows are divided among 100 clients whatever the size, so that a client is the same at each.
    """
    data = _divided(problem.images, problem.classes, seed)
    data = data.subset(np.arange(size.clients)).split(0.2, 0.2, seed=seed)
    if problem.most is not None:
        data = data.limited(
            train_rows=problem.most, few_rows=problem.few, few_share=problem.share, seed=seed
        )
    return halved(data) if size.halved and data.rows.x.shape[1] == 32 else data


@lru_cache(maxsize=3)  # the cells of an experiment differ in how many of the images they use
def _divided(images: str, classes: int, seed: int) -> FederatedData:
    return load(images, split="all", partition="classes", clients=100, classes=classes, seed=seed)


def strangers(name: str, size: Size, count: int = 500) -> np.ndarray:
    """Images of another kind."""
    data = load(name, split="test", partition="iid", clients=1, seed=0)
    data = halved(data) if size.halved and data.rows.x.shape[1] == 32 else data
    return np.asarray(data.rows.x[:count])


def best(
    method: Algorithm, data: FederatedData, size: Size, seed: int, look: Callable[[Run], Looked]
) -> tuple[float, Looked]:
    """The best validation accuracy on the way, and what `look` saw of the run there."""
    done = run_method(
        method, data, rounds=size.every, seed=seed, cohort=uniform(size.cohort), progress=False
    )
    return best_of(done, size.rounds, size.every, accuracy_of, look)


def entropies(done: Run, pictures: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """For each client, the entropies of its predictions for its test images and for others."""
    data, found = done.data, []
    assert isinstance(data, FederatedData)  # the rows are here, not with sites
    count = int(data.counts("test").min())
    for start, client in zip(data.starts("test"), data.ids, strict=True):
        kinds = {"own": data.rows.x[start : start + count], **pictures}
        found.append(
            {
                kind: np.asarray(entropy(done.predict(x, client=int(client))))
                for kind, x in kinds.items()
            }
        )
    return found


def _grid(
    cells: list[Problem],
    methods: Sequence[str],
    size: Size,
    report: Report,
    look: Callable[[Run], Looked],
) -> dict[Problem, dict[str, list[Looked]]]:
    """What `look` sees of each method in each cell, by seed. Settings are chosen at the first seed
    of a number of classes.
    """
    found: dict[Problem, dict[str, list[Looked]]] = {
        cell: {name: [] for name in methods} for cell in cells
    }
    settings: dict[tuple[str, str, int], float] = {}
    for cell in cells:
        for seed in range(FIRST_SEED, FIRST_SEED + size.seeds):
            data = images_of(cell, size, seed)
            rows = int(data.counts("train").max())
            for name in methods:
                report(f"{name} on {cell.label}, seed {seed - FIRST_SEED + 1} of {size.seeds}")
                kind = (name, cell.images, cell.classes)
                options = (
                    (settings[kind],) if kind in settings else SETTINGS[name][: size.candidates]
                )
                tried: dict[float, tuple[float, Looked]] = {}
                for option in options:
                    with suppress(Diverged):
                        tried[option] = best(
                            method_of(name, option, size, rows), data, size, seed, look
                        )
                if not tried:
                    raise ValueError(
                        f"{name} diverges on {cell.label} with each of its settings {options}"
                    )
                settings[kind] = max(tried, key=lambda option: tried[option][0])
                found[cell][name].append(tried[settings[kind]][1])
    return found


def _on_test(done: Run) -> Evaluation:
    return done.evaluate(split="test")


def accuracy_of(evaluation: Evaluation) -> float:
    """The mean over clients, however many rows each has."""
    return float(np.mean(evaluation.metrics["accuracy"].value()))


def _accuracies(
    found: dict[Problem, dict[str, list[Evaluation]]],
) -> dict[Problem, dict[str, np.ndarray]]:
    return {
        cell: {name: np.array([accuracy_of(one) for one in seeds]) for name, seeds in of.items()}
        for cell, of in found.items()
    }


def halved(data: FederatedData) -> FederatedData:
    """Each pixel the mean of four."""
    x = np.asarray(data.rows.x)
    count, height, width, channels = x.shape
    x = (
        x.reshape(count, height // 2, 2, width // 2, 2, channels)
        .mean((2, 4))
        .round()
        .astype(np.uint8)
    )
    rows = data.spec.rows._replace(x=jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
    return replace(data, rows=Rows(x, data.rows.y), spec=data.spec._replace(rows=rows))


def _beats(cell: Problem, scores: dict[str, np.ndarray], other: str) -> Claim:
    value = float(scores["FedSOUL"].mean() - scores[other].mean())
    return Claim(f"accuracy of FedSOUL minus {other}, {cell.label}", value, 0.0, value > 0)
