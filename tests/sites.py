"""A server and its sites in one process, with stores that outlive them."""

from itertools import count

import numpy as np

from covey.core.shard import bucket_size
from covey.data.federated import SPLITS
from covey.engines.connection import Connection
from covey.engines.site import Site
from covey.engines.site_programs import Programs, Ready, padded
from covey.engines.site_store import MemoryStore
from covey.engines.sites import Sites
from covey.engines.transport import MemoryTransport

STUDY, DIGEST = "study", "ab" * 32


def shards_of(data, position):
    shards = {split: data.shard(position, split) for split in SPLITS}
    return {split: padded(shard, bucket_size(shard.capacity)) for split, shard in shards.items()}


class World:
    """A server with a method, and one site for each client of some data.

    `restart_server` makes a new engine, as a new process would; `restart_site` a new site on its
    old store. Compiled programs are shared.
    """

    def __init__(
        self,
        method,
        data,
        *,
        seed=11,
        quorum=None,
        mishaps=None,
        workshop=None,
        gathering=None,
        **options,
    ):
        self.data, self.clock, self.attempts = data, count(1), 2
        self.transport = MemoryTransport({}, mishaps)
        self.method, self.options = method, {"seed": seed, "quorum": quorum, **options}
        self.reports = []
        self.engine = self._engine(gathering)
        self.workshop = Ready(Programs(self.engine.setup)) if workshop is None else workshop
        self.names = self.engine.names
        self.shards = [shards_of(data, at) for at in range(data.clients)]
        self.stores = {name: MemoryStore() for name in self.names}
        self.sites = {}
        self.settings = {name: {} for name in self.names}
        for name in self.names:
            self.restart_site(name)

    def connection(self):
        return Connection(
            self.transport,
            study=STUDY,
            digest=DIGEST,
            attempts=self.attempts,
            clock=lambda: next(self.clock),
            watch=self.reports.append,
        )

    def _engine(self, gathering=None):
        return Sites(
            self.method, self.data.roster, self.connection(), gathering=gathering, **self.options
        )

    def restart_server(self):
        self.engine = self._engine(self.engine.gathering)
        return self.engine

    def restart_site(self, name):
        at = self.names.index(name)
        self.sites[name] = Site(
            name,
            int(self.data.ids[at]),
            self.workshop,
            self.shards[at],
            study=STUDY,
            digest=DIGEST,
            store=self.stores[name],
            **self.settings[name],
        )
        self.transport.handlers[name] = self.sites[name].handle
        return self.sites[name]

    def node(self, name, state):
        """The node of a site that the server's state contains, wherever the site has it."""
        memory, at = self.stores[name].load(), self.names.index(name)
        stamp = tuple(map(int, np.asarray(state.accepted[at])))
        held = dict(memory.nodes)
        if memory.pending:
            held[memory.answered.stamp] = memory.answered.node
        return held.get(stamp)
