"""Ways to divide the rows of one data set among clients.

Each function gives the client of each row, an integer in 0, 1, ..., clients - 1, for
`FederatedData.from_arrays`. Every row goes to one client, and every client gets at least one row.
"""

import numpy as np
from jaxtyping import Int, Int64, Shaped


def iid(rows: int, clients: int, *, seed: int) -> Int64[np.ndarray, " rows"]:
    """Divide rows at random, in parts whose sizes differ by at most one.

    Args:
        rows: Number of rows.
        clients: Number of clients.
        seed: Seed of the division.

    Returns:
        The client of each row.

    Example:
        >>> np.bincount(iid(10, 3, seed=1)).tolist()
        [4, 3, 3]
    """
    _check_clients(clients, rows)
    return np.random.default_rng(seed).permutation(np.arange(rows) % clients)


def quantity_skew(
    rows: int, clients: int, *, alpha: int | float, seed: int
) -> Int64[np.ndarray, " rows"]:
    """Divide rows at random, in parts of unequal size.

    Each client gets one row, and the rest are divided by shares p ~ Dirichlet(alpha, ..., alpha).

    Args:
        rows: Number of rows.
        clients: Number of clients.
        alpha: Concentration of the shares; smaller values make sizes more unequal.
        seed: Seed of the division.

    Returns:
        The client of each row.

    Example:
        >>> len(np.unique(quantity_skew(100, 4, alpha=0.5, seed=1)))
        4
    """
    _check_clients(clients, rows)
    _check_positive("alpha", alpha)
    generator = np.random.default_rng(seed)
    share = _dirichlet(generator, alpha, clients)
    sizes = 1 + generator.multinomial(rows - clients, share)
    return generator.permutation(np.repeat(np.arange(clients), sizes))


def label_dirichlet(
    labels: Int[np.ndarray, " rows"], clients: int, *, alpha: int | float, seed: int
) -> Int64[np.ndarray, " rows"]:
    """Label skew: divide the rows of each label by shares p ~ Dirichlet(alpha, ..., alpha).

    Each label draws its shares of the clients anew. A client that gets nothing is given one row of
    the client that has most.

    Args:
        labels: Label of each row.
        clients: Number of clients.
        alpha: Concentration of the shares; smaller values make clients more different. The papers
            use 0.4 and similar.
        seed: Seed of the division.

    Returns:
        The client of each row.

    Example:
        >>> owner = label_dirichlet(np.arange(60) % 3, 4, alpha=0.4, seed=1)
        >>> len(owner), len(np.unique(owner))
        (60, 4)

    Reference: Hsu, Qi and Brown (2019), Measuring the effects of non-identical data distribution;
    Marfoq et al. (2021), Federated multi-task learning under a mixture of distributions.
    """
    _check_clients(clients, len(labels))
    _check_positive("alpha", alpha)
    generator = np.random.default_rng(seed)
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(_dirichlet(generator, alpha, clients))[:-1] * len(rows)
        owner[rows] = np.searchsorted(np.floor(cuts + 0.5), np.arange(len(rows)), side="right")
    return _without_empty(owner, clients, generator)


def classes_per_client(
    labels: Int[np.ndarray, " rows"], clients: int, *, classes: int, seed: int
) -> Int64[np.ndarray, " rows"]:
    """Give each client rows of a few labels only.

    Clients choose in turn among the labels that the fewest have chosen before, so that all labels
    are held about equally often. The rows of a label are divided evenly among its clients.

    Args:
        labels: Label of each row.
        clients: Number of clients.
        classes: Number of labels per client.
        seed: Seed of the division.

    Returns:
        The client of each row.

    Example:
        >>> labels = np.arange(60) % 3
        >>> owner = classes_per_client(labels, 3, classes=2, seed=1)
        >>> [len(np.unique(labels[owner == client])) for client in range(3)]
        [2, 2, 2]
    """
    _check_clients(clients, len(labels))
    known, code, available = np.unique(labels, return_inverse=True, return_counts=True)
    if not 1 <= classes <= len(known):
        raise ValueError(
            f"classes={classes}: a client can hold 1 to {len(known)} of the {len(known)} labels"
        )
    if clients * classes < len(known):
        raise ValueError(
            f"{clients} clients with {classes} labels each cannot hold all {len(known)} labels;"
            " take more clients or more classes"
        )
    generator = np.random.default_rng(seed)
    holds = np.zeros((clients, len(known)), bool)
    for client in range(clients):
        chosen = np.lexsort((generator.random(len(known)), holds.sum(0)))[:classes]
        holds[client, chosen] = True
    short = np.flatnonzero(holds.sum(0) > available)
    if short.size:
        raise ValueError(
            f"label {known[short[0]]} has {available[short[0]]} rows for"
            f" {holds[:, short[0]].sum()} clients; take fewer clients"
        )
    owner = np.empty(len(labels), np.int64)
    for label in range(len(known)):
        rows = np.flatnonzero(code == label)
        owner[rows] = generator.permutation(
            np.resize(generator.permutation(np.flatnonzero(holds[:, label])), len(rows))
        )
    return owner


def pachinko(
    fine: Int[np.ndarray, " rows"],
    coarse: Int[np.ndarray, " rows"],
    clients: int,
    *,
    alpha: int | float,
    beta: int | float,
    seed: int,
) -> Int64[np.ndarray, " rows"]:
    """Two-stage Pachinko allocation, as CIFAR-100 is divided.

    Each client draws shares of the coarse labels from Dirichlet(alpha) and, within each coarse
    label, shares of its fine labels from Dirichlet(beta). It then draws its rows one by one and
    without replacement: a coarse label, a fine label, a row. A label that has no rows left is
    removed and the other shares are renormalised. All clients get rows // clients rows; the
    remainder goes one row each to the first clients, drawn by them in the same way.

    Args:
        fine: Fine label of each row.
        coarse: Coarse label of each row; the coarse labels are groups of fine ones.
        clients: Number of clients.
        alpha: Concentration of the shares of coarse labels (0.1 in the paper).
        beta: Concentration of the shares of fine labels within a coarse one (10 in the paper).
        seed: Seed of the division.

    Returns:
        The client of each row.

    Example:
        >>> fine = np.arange(40) % 4
        >>> np.bincount(pachinko(fine, fine // 2, 5, alpha=0.1, beta=10, seed=1)).tolist()
        [8, 8, 8, 8, 8]

    Reference: Li and McCallum (2006), Pachinko allocation; Reddi et al. (2021), Adaptive federated
    optimization.
    """
    if len(fine) != len(coarse):
        raise ValueError(
            f"{len(fine)} fine and {len(coarse)} coarse labels were given; they are labels of the"
            " same rows"
        )
    _check_clients(clients, len(fine))
    _check_positive("alpha", alpha)
    _check_positive("beta", beta)
    generator = np.random.default_rng(seed)
    pairs, code = np.unique(np.stack([coarse, fine], axis=1), axis=0, return_inverse=True)
    if len(np.unique(pairs[:, 1])) < len(pairs):
        raise ValueError(
            "a fine label has rows of two coarse labels; the coarse labels must be groups of fine"
            " ones"
        )
    children = [np.flatnonzero(pairs[:, 0] == label) for label in np.unique(coarse)]
    parent = np.repeat(np.arange(len(children)), [len(group) for group in children])
    waiting = [
        generator.permutation(np.flatnonzero(code == label)).tolist() for label in range(len(pairs))
    ]
    left = np.bincount(code, minlength=len(pairs))
    left_coarse = np.bincount(parent[code], minlength=len(children))
    owner = np.empty(len(fine), np.int64)
    for client in range(clients):
        coarse_share = _dirichlet(generator, alpha, len(children))
        fine_share = [_dirichlet(generator, beta, len(group)) for group in children]
        size = len(fine) // clients + (client < len(fine) % clients)
        for ticket_coarse, ticket_fine in generator.random((size, 2)):
            group = _draw(coarse_share, left_coarse, ticket_coarse)
            label = children[group][_draw(fine_share[group], left[children[group]], ticket_fine)]
            owner[waiting[label].pop()] = client
            left[label] -= 1
            left_coarse[group] -= 1
    return owner


def by_column(values: Shaped[np.ndarray, " rows"]) -> Int64[np.ndarray, " rows"]:
    """Make one client of each distinct value, in sorted order.

    Args:
        values: Value of each row, such as its site.

    Returns:
        The client of each row.

    Example:
        >>> by_column(np.array(["zug", "bern", "zug"])).tolist()
        [1, 0, 1]
    """
    if not len(values):
        raise ValueError("by_column: there are no rows")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _draw(share: np.ndarray, left: np.ndarray, ticket: float) -> int:
    """A choice among those that have rows left, by their shares. Where these are all zero by
    underflow, by the rows left.
    """
    weight = np.where(left > 0, share, 0.0)
    total = np.cumsum(weight if weight.sum() > 0 else left)
    choice = int(np.searchsorted(total, ticket * total[-1], side="right"))
    return min(choice, int(np.flatnonzero(left)[-1]))


def _dirichlet(generator: np.random.Generator, alpha: int | float, size: int) -> np.ndarray:
    """Dirichlet(alpha, ..., alpha). A very small alpha can underflow to all zeros: then one takes
    everything, as in the limit.
    """
    share = generator.dirichlet(np.full(size, alpha))
    if np.isfinite(share).all() and share.sum() > 0:
        return share
    return np.eye(size)[generator.integers(size)]


def _without_empty(owner: np.ndarray, clients: int, generator: np.random.Generator) -> np.ndarray:
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        owner[generator.choice(np.flatnonzero(owner == richest))] = client
        sizes[richest] -= 1
        sizes[client] = 1
    return owner


def _check_clients(clients: int, rows: int) -> None:
    if not 1 <= clients <= rows:
        raise ValueError(
            f"{rows} rows cannot be divided among {clients} clients; choose 1 to {rows} clients"
        )


def _check_positive(name: str, value: int | float) -> None:
    if not 0 < value < np.inf:
        raise ValueError(f"{name} must be a positive number, got {value}")
