"""A model test of the protocol: whatever is lost, repeated, late, killed and restored, the server's
memory is the mean of the sites' memories, nothing is counted twice, and no round is answered twice.

The method is FedEM's memory alone, in whole numbers: a site sends a random value, its own memory
V_i and the server's V move by it. Nothing is compiled.
"""

import subprocess
import sys
from collections import defaultdict
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from covey.core import protocol, wire
from covey.core.algorithm import Algorithm, Empty, no_state
from covey.core.keys import root_key
from covey.core.node import Node, Sent
from covey.core.protocol import Kind
from covey.core.shard import Rows, Spec, whole
from covey.core.trimming import WHOLE
from covey.data.roster import Roster
from covey.engines.connection import Connection
from covey.engines.gathering import Gathering
from covey.engines.messages import Answer, unpack_answer
from covey.engines.reception import NoQuorumError
from covey.engines.record import Record, Sizes
from covey.engines.setup import Setup, Shapes
from covey.engines.site import Site
from covey.engines.site_programs import Programs, Ready
from covey.engines.site_store import MemoryStore
from covey.engines.sites import Sites

NAMES = ["a", "b", "c"]
ZERO = np.float32(0)
DIGEST = "00" * 32
ROWS = whole(Rows(np.zeros((1, 1)), np.zeros(1)))
METHOD = Algorithm("memory", *[no_state] * 8)
FATES = st.sampled_from(
    ["arrives"] * 8 + ["lost down", "lost up", "repeated", "late", "dies before", "dies after"]
)


class Killed(BaseException):
    """The process of a site ends here."""


class Memory(Programs):
    """V_i moves by what is sent: a value that no other answer has."""

    def __init__(self):
        self.values = count(1)
        self.root, self.known = root_key(0), []
        self.shapes = SimpleNamespace(down=ZERO, node=Node(ZERO, Empty()))

    def first_node(self, root, client_id, down, data):
        return Node(ZERO, Empty())

    def used(self, down):
        return WHOLE

    def node_round(self, root, t, client_id, down, node, data):
        value = np.float32(next(self.values))
        return Answer(Sent(value, None), Empty()), Node(node.state + value, Empty()), np.bool_(True)


class Sum(Gathering):
    """V moves by the sum of what was heard. Who takes part changes from round to round."""

    def __init__(self):
        self.like = Answer(Sent(ZERO, None), Empty())
        shapes = Shapes(ZERO, ZERO, Node(ZERO, Empty()), ZERO, Sent(ZERO, None), Empty())
        rest = [None] * 6
        self.setup = Setup(*rest, shapes=shapes, sizes=Sizes(64, 64, 64, 64))
        self._decodes = lambda sent: True
        self._used = lambda down: WHOLE

    def start(self):
        return ZERO

    def broadcast(self, server):
        return server

    def cohort(self, t):
        return [(at, 1.0) for at in range(3) if (t + at) % 4]

    def close(self, t, server, heard, counts):
        total = sum(float(answer.sent.payload) for answer, _ in heard)
        return np.float32(server + total), Record(counts, Empty(), Empty())


class FragileStore(MemoryStore):
    """A store whose process may die just before a transaction, or just after."""

    dies = None

    def save(self, memory):
        when, self.dies = self.dies, None
        if when == "dies before":
            raise Killed
        super().save(memory)
        if when == "dies after":
            raise Killed


class Net:
    """Delivers messages as planned, and remembers all that was ever sent."""

    def __init__(self, machine):
        self.machine, self.plan, self.late = machine, {}, {}

    def exchange(self, messages, *, deadline, quorum):
        answers = {}
        for name, message in messages.items():
            fate, late = self.plan.get(name, "arrives"), self.late.pop(name, None)
            answer = None
            if fate != "lost down" and name not in self.machine.dead:
                for _ in range(2 if fate == "repeated" else 1):
                    answer = self.machine.deliver(name, message, fate)
            if fate == "late" and answer is not None:
                self.late[name], answer = answer, None
            if fate == "lost up":
                answer = None
            answer = late if late is not None else answer
            if answer is not None:
                answers[name] = answer
        return answers


class Federation(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.net, self.clock = Net(self), count(1)
        self.programs, self.gathering = Memory(), Sum()
        self.stores = {name: FragileStore() for name in NAMES}
        self.sites, self.dead = {}, set()
        self.sent = defaultdict(list)  # all messages to a site
        self.answered = defaultdict(set)  # (site, epoch, round) -> uploads
        self.asked_with = {}  # upload -> the message that it answers
        self.checkpoints = []
        for name in NAMES:
            self.revive(name)
        self.new_server()
        self.state = self.engine.start()

    def new_server(self):
        connection = Connection(
            self.net,
            study="model",
            digest=DIGEST,
            attempts=1,
            clock=lambda: next(self.clock),
        )
        shape = jax.ShapeDtypeStruct((), np.float64)
        roster = Roster(np.arange(3), NAMES, np.full((3, 3), 5), Spec(Rows(shape, shape)))
        self.engine = Sites(METHOD, roster, connection, seed=0, quorum=1, gathering=self.gathering)

    def revive(self, name):
        self.dead.discard(name)
        self.sites[name] = Site(
            name,
            NAMES.index(name),
            Ready(self.programs),
            {"train": ROWS},
            study="model",
            digest=DIGEST,
            store=self.stores[name],
        )

    def deliver(self, name, message, fate="arrives"):
        """Hand a message to a living site; what it answers is written down."""
        self.stores[name].dies = fate if fate.startswith("dies") else None
        self.sent[name].append(message)
        try:
            reply = self.sites[name].handle(message)
        except Killed:
            self.dead.add(name)
            return None
        finally:
            self.stores[name].dies = None
        envelope, _ = protocol.open_envelope(message)
        found, _ = protocol.open_envelope(reply)
        if envelope.kind == Kind.ROUND and found.kind == Kind.ANSWER:
            self.answered[name, envelope.epoch, envelope.round].add(reply)
            value = body_of(reply)
            assert self.asked_with.setdefault(value, message) == message
        return reply

    @rule(rounds=st.lists(st.tuples(FATES, FATES, FATES), min_size=1, max_size=3))
    def play_rounds(self, rounds):
        for fates in rounds:
            self.net.plan = dict(zip(NAMES, fates, strict=True))
            before = self.state
            try:
                self.state, _ = self.engine.advance(self.state, 1)
            except NoQuorumError:
                assert self.state is before
            self.net.plan = {}
            self.check()

    @rule()
    def acknowledge(self):
        self.engine.acknowledge(self.state)

    @rule(name=st.sampled_from(NAMES), ago=st.integers(1, 4))
    def deliver_an_old_message_again(self, name, ago):
        if len(self.sent[name]) >= ago and name not in self.dead:
            self.net.late[name] = self.deliver(name, self.sent[name][-ago])

    @precondition(lambda self: self.dead)
    @rule()
    def restart_the_dead_sites(self):
        for name in sorted(self.dead):
            self.revive(name)

    @rule(crashes=st.sampled_from([False, False, False, True]))
    def save_a_checkpoint(self, crashes):
        snapshot = wire.pack(self.engine.snapshot(self.state))
        self.checkpoints = [*self.checkpoints, snapshot][-2:]
        if crashes:  # before it can say that the checkpoint is there
            self.restart_from(-1)
        else:
            self.engine.checkpointed()

    @rule(damaged=st.sampled_from([False, False, True]))
    def kill_the_server(self, damaged):
        """And restart it from its newest checkpoint, or the one before where that is damaged."""
        if damaged and len(self.checkpoints) > 1:
            del self.checkpoints[-1]
        self.restart_from(-1)

    def restart_from(self, which):
        self.new_server()
        self.state = self.engine.start()
        if self.checkpoints:
            found = wire.unpack(self.checkpoints[which], self.engine.snapshot_like())
            self.state = self.engine.restore(found)

    @invariant()
    def check(self):
        self.the_server_has_what_the_sites_have()
        self.a_round_is_answered_once()
        self.a_site_keeps_few_nodes()

    def the_server_has_what_the_sites_have(self):
        total = 0.0
        for at, name in enumerate(NAMES):
            stamp = protocol.Stamp(*map(int, self.state.accepted[at]))
            if stamp == protocol.NEVER:
                continue
            memory = self.stores[name].load()
            held = dict(memory.nodes)
            if memory.pending:
                held[memory.answered.stamp] = memory.answered.node
            assert stamp in held, f"{name} has lost {stamp}"
            total += float(wire.unpack(held[stamp], self.programs.shapes.node).state)
        assert total == float(self.state.server)

    def a_round_is_answered_once(self):
        assert all(len(replies) == 1 for replies in self.answered.values())

    def a_site_keeps_few_nodes(self):
        assert all(len(store.load().nodes) <= 3 for store in self.stores.values())

    def teardown(self):
        """Once all is well again, everybody is heard and nobody is lost."""
        for name in sorted(self.dead):
            self.revive(name)
        self.net.late = {}
        for _ in range(4):
            self.state, lines = self.engine.advance(self.state, 1)
            assert lines[0]["refused"] == lines[0]["lost"] == 0
        self.the_server_has_what_the_sites_have()


def body_of(reply):
    _, body = protocol.open_envelope(reply)
    return float(unpack_answer(body, Answer(Sent(ZERO, None), Empty())).sent.payload)


def walk(sequences: int, steps: int) -> None:
    chosen = settings(max_examples=sequences, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(Federation, settings=chosen)


def test_the_protocol():
    walk(25, 12)


@pytest.mark.slow
def test_the_protocol_at_length():
    """In a process that does not check the types of every call: that takes twenty times as long."""
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from hypothesis import settings; settings.load_profile('ci')\n"
        "from test_protocol_model import walk; walk(2000, 40)"
    )
    here = Path(__file__).parent
    subprocess.run([sys.executable, "-c", code], cwd=here, check=True)


def test_a_site_with_an_older_store_says_so_and_stays_out():
    world = Federation()
    world.state, _ = world.engine.advance(world.state, 2)
    old = world.stores["c"].load()
    world.state, _ = world.engine.advance(world.state, 2)
    world.stores["c"].save(old)
    before = wire.pack(world.state.accepted)
    with pytest.warns(UserWarning, match=r"site 'c' refuses .*store is of another time"):
        world.state, lines = world.engine.advance(world.state, 1)
    assert lines[0]["refused"] == 1
    assert world.state.accepted[2].tolist() == wire.unpack(before, world.state.accepted)[2].tolist()
