"""Blocks of clients, the protocol of calls to them, and blocks in this process."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import PyTree

from covey.data.federated import FederatedData
from covey.engines.block import Block, Hello, Share
from covey.engines.rows import Storage


class BlockLostError(OSError):
    """Blocks whose process has died, by their index."""

    def __init__(self, blocks: Sequence[int]):
        super().__init__(f"lost blocks: {', '.join(map(str, blocks))}")
        self.blocks = list(blocks)


@runtime_checkable
class Crew(Protocol):
    """Blocks of clients, each in its own process.

    Attributes:
        edges: Positions of the clients where blocks begin, and where the last one ends.
        starts: Count of the starts of each block.
    """

    edges: np.ndarray
    starts: list[int]

    def call(self, name: str, arguments: Mapping[int, tuple], sent: PyTree = None) -> dict:
        """Call a method of some blocks at once.

        Args:
            name: The method.
            arguments: Its arguments, by block.
            sent: A value for all blocks that travels once, as the last argument; None: nothing.

        Returns:
            The result of each block.

        Raises:
            BlockLostError: Some blocks have died.
            ValueError: A block has refused.
        """
        ...

    def restart(self, block: int) -> None:
        """Start a block again, with its rows."""
        ...

    def node_of(self, block: int) -> str:
        """The name of the node that a block was last started on."""
        ...


class LocalCrew:
    """Blocks in this process, as a cluster has them."""

    def __init__(self, data: FederatedData, blocks: int, storage: Storage = "auto"):
        self.edges = edges_of(data, blocks)
        self.shares = shares_of(data, self.edges, storage)
        self.starts = [0] * blocks
        self.blocks: list[Any] = [None] * blocks
        self.nodes = [""] * blocks
        for block in range(blocks):
            self.restart(block)

    def call(self, name: str, arguments: Mapping[int, tuple], sent: PyTree = None) -> dict:
        """See `Crew.call`."""
        if lost := [block for block in arguments if self.blocks[block] is None]:
            raise BlockLostError(lost)
        last = () if sent is None else (sent,)
        return {
            block: getattr(self.blocks[block], name)(*given, *last)
            for block, given in arguments.items()
        }

    def restart(self, block: int) -> None:
        """See `Crew.restart`."""
        self.blocks[block] = Block()
        self.nodes[block] = checked(self.blocks[block].hello()).node
        self.blocks[block].open(self.shares[block])
        self.starts[block] += 1

    def node_of(self, block: int) -> str:
        """See `Crew.node_of`."""
        return self.nodes[block]


def checked(hello: Hello) -> Hello:
    """A block's description of itself, if it fits this process.

    Raises:
        ValueError: The node has another version of covey, or of JAX, whose random numbers and
            programs may differ.
    """
    for name, theirs, ours in (
        ("covey", hello.covey, version("covey")),
        ("jax", hello.jax, version("jax")),
    ):
        if theirs != ours:
            raise ValueError(
                f"node {hello.node} has {name} {theirs} and this process {ours}: install the same "
                "version on every node"
            )
    return hello


def edges_of(data: FederatedData, blocks: int) -> np.ndarray:
    """Positions that cut the clients into blocks of about the same number of training rows.

    Args:
        data: The clients.
        blocks: Number of blocks.

    Returns:
        Where each block begins, and where the last one ends.

    Raises:
        ValueError: There are more blocks than clients.
    """
    if not 1 <= blocks <= data.clients:
        raise ValueError(
            f"{blocks} actors were asked for and there are {data.clients} clients: every actor "
            f"needs a client; set actors from 1 to {data.clients}"
        )
    work = np.cumsum(data.counts("train") + 1.0)
    cuts = np.searchsorted(work, work[-1] * np.arange(1, blocks) / blocks) + 1
    least, most = np.arange(1, blocks), data.clients - np.arange(blocks - 1, 0, -1)
    cuts = np.maximum.accumulate(np.clip(cuts, least, most) - least) + least
    return np.concatenate([[0], np.minimum(cuts, most), [data.clients]])


def shares_of(data: FederatedData, edges: np.ndarray, storage: Storage) -> list[Share]:
    """The clients of each block."""
    pairs = pairwise(edges)
    return [Share.of(data.subset(np.arange(low, high)), storage) for low, high in pairs]
