"""What a run needs before its first round: shapes and sizes, checked, whatever engine runs it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from covey.channel.exact import keep_exact
from covey.channel.identity import identity
from covey.core import tree
from covey.core.algorithm import (
    Aggregate,
    Algorithm,
    Info,
    Message,
    Plan,
    State,
)
from covey.core.channel import Channel
from covey.core.cohort import Sampler, Scheme, full
from covey.core.faults import Faults
from covey.core.keys import Stream, key_for, root_key
from covey.core.method_checks import need_method, place_of
from covey.core.node import Node, Sent, first_node, node_round
from covey.core.shard import Shard, Spec, bucket_size
from covey.data.federated import FederatedData
from covey.data.roster import Roster
from covey.engines.explaining import explaining, path_of
from covey.engines.messages import Answer, down_size, up_size
from covey.engines.record import Sizes
from covey.engines.rehearsal import rehearse
from covey.engines.sharing import shared

_OTHERS = 3  # rows of other clients in a trace: `Shard.rows` is not what the client has


class Shapes(NamedTuple):
    """Shapes that follow from the method and the data: of the server state, broadcast, node,
    upload, what is sent of it, and the clients' infos.
    """

    server: State
    down: Message
    node: Node
    up: Message
    sent: Sent
    client_info: Info


class Setup(NamedTuple):
    """What does not change during a run.

    Attributes:
        algorithm: The method.
        channel: What uploads pass through; the method's exact parts pass as they are.
        sampler: Who takes part in a round.
        faults: Probabilities of lost, late and repeated messages.
        root: The key of the run.
        spec: Shapes and names of the rows, counts of clients and rows, the channel's omega.
        shapes: Shapes of states and messages.
        sizes: Sizes of messages.
    """

    algorithm: Algorithm
    channel: Channel
    sampler: Sampler
    faults: Faults
    root: Key[Array, ""]
    spec: Spec
    shapes: Shapes
    sizes: Sizes

    def first_server(self) -> State:
        """The server's state before the first round."""
        # In one program: op by op, each of a hundred would be compiled by itself. Rows were checked
        # when shapes were found; without them, runs on data of the same shapes share the program.
        spec = self.spec._replace(first_row=None)
        server = shared(_first_of, self.algorithm.init, spec)(self.root)
        for path, leaf in jax.tree_util.tree_leaves_with_path(server):
            if jnp.issubdtype(leaf.dtype, jnp.inexact) and np.isnan(np.asarray(leaf)).any():
                raise ValueError(
                    f"{self.algorithm.name}: init{place_of(self.algorithm.init)}: {path_of(path)} "
                    "is NaN before the first round; look at what init divides by, and at log or "
                    "sqrt of what is not positive"
                )
        return server


def setup_of(
    algorithm: Algorithm,
    clients: FederatedData | Roster,
    *,
    seed: int,
    cohort: Scheme | None,
    channel: Channel | None,
    faults: Faults | None,
    rounds: int | None = None,
) -> Setup:
    """Put together what a run needs, and let the method check it. No row is looked at."""
    counts = clients.counts("train")
    if not counts.any():
        raise ValueError(
            "no client has training rows: there is nothing to learn from; see FederatedData.split"
        )
    sampler = (full() if cohort is None else cohort)(counts)

    def validate(given: Channel, upload: Message) -> None:
        if algorithm.hooks.validate is not None:
            algorithm.hooks.validate(Plan(counts, sampler, given, upload, rounds))

    agreed = agreement_of(
        algorithm, spec_of(clients, counts), seed=seed, channel=channel, validate=validate
    )
    rehearse(algorithm, agreed.root, agreed.spec, agreed.shapes.server, agreed.shapes.node.state)
    checked = (Faults() if faults is None else faults).checked()
    sizes = sizes_of(agreed.channel, agreed.shapes)
    return Setup(
        algorithm,
        agreed.channel,
        sampler,
        checked,
        agreed.root,
        agreed.spec,
        agreed.shapes,
        sizes,
    )


def _first_of(init: Callable[..., State], spec: Spec) -> Callable[[Key[Array, ""]], State]:
    return jax.jit(lambda root: init(key_for(root, Stream.INIT, 0), spec))


class Agreement(NamedTuple):
    """What the server and every client make alike, each by itself, from a method and the shapes
    of the rows; see `Setup`.
    """

    algorithm: Algorithm
    channel: Channel
    root: Key[Array, ""]
    spec: Spec
    shapes: Shapes


def spec_of(clients: FederatedData | Roster, counts: np.ndarray | None = None) -> Spec:
    """The specification that the server and all sites make their shapes from.

    Args:
        clients: The clients.
        counts: Their numbers of training rows, where they are known already.
    """
    known = clients.counts("train") if counts is None else counts
    spec = clients.spec._replace(capacity=bucket_size(int(known.max(initial=1))))
    return spec if isinstance(clients, Roster) else spec._replace(first_row=clients.first_row)


def agreement_of(
    algorithm: Algorithm,
    spec: Spec,
    *,
    seed: int,
    channel: Channel | None,
    validate: Callable[[Channel, Message], None] | None = None,
    own: int | None = None,
) -> Agreement:
    """What the server and every client have to agree on.

    Args:
        algorithm: The method, prepared.
        spec: Shapes and counts of the rows, from `spec_of`.
        seed: Seed of the run.
        channel: What uploads pass through; None where nothing changes them.
        validate: (channel, shapes of an upload) raises where they do not fit the plan.
        own: At a site, the capacity of its rows; see `shapes_of`.
    """
    need_method(algorithm)
    if algorithm.preparation is not None:
        raise ValueError(f"{algorithm.name} has to be prepared first, as covey.run does")
    root = root_key(seed)
    if channel is None:
        given, spec = identity(), spec._replace(omega=0.0)
    else:
        given = channel
    watched = explaining(algorithm)
    traced_once = watched._replace(client=jax.jit(watched.client))
    plain = shapes_of(traced_once, identity(), root, spec, own)
    _need_parts(algorithm, plain.up)
    if given.omega is None or given.omega(plain.up) > 0:  # what loses nothing needs no exceptions
        given = keep_exact(algorithm.exact, given)
    if validate is not None:
        validate(given, plain.up)
    omega = None if given.omega is None else float(given.omega(plain.up))
    spec = spec._replace(omega=omega)
    shapes = plain if channel is None else shapes_of(traced_once, given, root, spec, own)
    return Agreement(algorithm, given, root, spec, shapes)


def shapes_of(
    algorithm: Algorithm,
    channel: Channel,
    root: Key[Array, ""],
    spec: Spec,
    own: int | None = None,
) -> Shapes:
    """Shapes of states and messages, found without computing anything.

    A client's state and upload must not depend on how many rows it has: a client with one row and
    one with two are compared.

    Args:
        algorithm: The method.
        channel: Codec of the uploads.
        root: The key of the run.
        spec: Shapes and counts of the rows.
        own: At a site, the capacity of its rows. A site takes no step of the server: that is not
            traced there.
    """

    def trace(root, rows):
        capacity = jax.tree.leaves(rows)[0].shape[0] - _OTHERS
        data = Shard(rows, jnp.int32(0), jnp.int32(1), capacity)
        server = algorithm.init(root, spec)
        down = algorithm.broadcast(server)
        node = first_node(algorithm, channel, root, 0, down, data)
        sent, new, info = node_round(algorithm, channel, root, 0, 0, down, node, data)
        up = channel.decode(sent.payload)
        after = server
        if own is None:
            after, _ = algorithm.server(root, server, Aggregate(up, up, *(jnp.ones(()),) * 2))
        return Shapes(server, down, node, up, sent, info), new, after

    def with_rows(count):
        stored = count + _OTHERS
        rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((stored, *s.shape), s.dtype), spec.rows)
        return jax.eval_shape(trace, root, rows)

    if algorithm.hooks.fixed_shapes:  # the trace that the rounds use
        (shapes, new, after) = (larger, _, _) = with_rows(own or spec.capacity)
    else:
        (shapes, new, after), (larger, _, _) = with_rows(1), with_rows(2)
    name, rows, time = algorithm.name, "with one row and with two", "before a round and after it"
    need_same_shapes(f"{name}: the upload", shapes.up, larger.up, rows)
    need_same_shapes(f"{name}: the state of a client", shapes.node.state, larger.node.state, rows)
    need_same_shapes(f"{name}: the state of a client", shapes.node.state, new.state, time)
    need_same_shapes(f"{name}: the state of the server", shapes.server, after, time)
    return shapes


def _need_parts(algorithm: Algorithm, up: Message) -> None:
    """An error where the upload has no part of a name that the method wants exact."""
    paths = tree.paths(up)
    for name in algorithm.exact:
        if not any(tree.is_below(path, name) for path in paths):
            raise ValueError(
                f"{algorithm.name}: exact={algorithm.exact!r}: the upload has no part {name!r}; it "
                f"has {', '.join(paths)}"
            )


def need_same_shapes(what: str, one: PyTree, other: PyTree, when: str) -> None:
    """Raise a ValueError where two trees differ in structure, shapes or types.

    Args:
        what: What the trees are, for the message.
        one: The first tree.
        other: The second.
        when: Where each of the two is found, for the message.
    """
    if jax.tree.structure(one) != jax.tree.structure(other):
        raise ValueError(
            f"{what} changes its structure, from {_structure(one)} to {_structure(other)} "
            f"({when}); it must be the same in every round and for any rows"
        )
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(
                f"{what}: {path_of(path)} is {a.dtype}{list(a.shape)} and "
                f"{b.dtype}{list(b.shape)} ({when}); shapes and types must not depend on the "
                "client's rows or on the round"
            )


def _structure(tree: PyTree) -> str:
    """The kind of a tree and the names of its arrays."""
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(tree)):
        return "one array"
    names = ", ".join(map(path_of, (path for path, _ in jax.tree.leaves_with_path(tree))))
    return f"{type(tree).__name__}({names})"


def sizes_of(channel: Channel, shapes: Shapes) -> Sizes:
    """Sizes of a broadcast and of an upload: bits of the values, and bytes of whole messages."""
    return Sizes(
        down=tree.bits(shapes.down),
        up=channel.bits(shapes.sent.payload) + tree.bits(shapes.sent.weight),
        down_message=down_size(shapes.down),
        up_message=up_size(Answer(shapes.sent, shapes.client_info)),
    )
