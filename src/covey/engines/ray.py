"""One organisation's cluster: blocks of clients in Ray actors, and calls as Ray tasks. The only
place that imports Ray.
"""

import os
import re
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from jaxtyping import PyTree

from covey.data.federated import FederatedData
from covey.engines.block import Block, Hello
from covey.engines.crew import BlockLostError, checked, edges_of, shares_of
from covey.engines.rows import Storage

_ANSWER_SECONDS = 5.0  # that a cluster has to accept a connection
_START_SECONDS = 120.0  # that an actor has to start
_PATIENCE_SECONDS = 300.0  # after which an actor that does not answer is named
_CORES_PER_ACTOR = 1
_SAVE_SECONDS = 60.0  # that tasks have to save themselves after Ctrl-C
_USERS = "covey_user_"  # how `config.user_code` names modules of files of users
Task = TypeVar("Task")
Result = TypeVar("Result")


class RayCrew:
    """Blocks in Ray actors.

    The actors end with this process, or when `close` is called.

    Args:
        data: The clients.
        actors: Number of actors. Default: one per CPU of the cluster, at most one per client.
        address: Address of the cluster, "host:port" or "auto". Default: the one that Ray is already
            connected to, or else a new one on this machine.
        storage: Storage of the rows in actors.

    Raises:
        ValueError: Ray is not installed, there are more actors than clients or CPUs, a node has
            another version of covey, or cannot open rows.
        OSError: No cluster answers.
    """

    def __init__(
        self,
        data: FederatedData,
        *,
        actors: int | None = None,
        address: str | None = None,
        storage: Storage = "auto",
    ):
        _ray()
        if actors is not None:
            edges_of(data, actors)  # before a cluster is started for nothing
        self.ray = connect(address, actors)
        _send_files_of_users()
        cores = int(self.ray.cluster_resources().get("CPU", 1))
        count = max(1, min(cores, data.clients)) if actors is None else actors
        if count * _CORES_PER_ACTOR > cores:
            raise ValueError(
                f"{count} actors need {count * _CORES_PER_ACTOR} CPUs and the cluster has {cores}: "
                "use fewer actors, or add nodes"
            )
        self.edges = edges_of(data, count)
        self.shares = [self.ray.put(share) for share in shares_of(data, self.edges, storage)]
        self.starts, self.processes = [0] * count, [0] * count
        self.nodes = ["not started"] * count
        self.actors: list[Any] = [None] * count
        remote = self.ray.remote(num_cpus=_CORES_PER_ACTOR, scheduling_strategy="SPREAD")
        self._actor_class = remote(_Actor)
        for block in range(count):
            self.actors[block] = self._actor_class.remote(sys.path)
        for block in range(count):
            self._open(block)

    def call(self, name: str, arguments: Mapping[int, tuple], sent: PyTree = None) -> dict:
        """See `covey.engines.crew.Crew.call`."""
        last = () if sent is None else (self._put(sent),)
        calls = {
            block: self.actors[block].call.remote(name, *given, *last)
            for block, given in arguments.items()
        }
        results, lost = {}, []
        for block, call in calls.items():
            try:
                results[block] = self._result(block, call)
            except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
                lost.append(block)
            except self.ray.exceptions.RaySystemError as error:  # what was sent cannot be read
                raise ValueError(
                    f"actor {block} on node {self.nodes[block]} cannot read what it was sent: "
                    f"{_last_line(error)}; modules of yours must be importable on every node"
                ) from None
        if lost:
            raise BlockLostError(lost)
        for refused in results.values():
            if isinstance(refused, _Refused):
                raise ValueError(refused.why)
        return results

    def _result(self, block: int, call: Any) -> Any:
        """The result of an actor. A round may take hours, so that nobody is given up; but an actor
        that hangs would be waited for without a word.
        """
        waited = 0.0
        while True:
            try:
                return self.ray.get(call, timeout=_PATIENCE_SECONDS)
            except self.ray.exceptions.GetTimeoutError:
                waited += _PATIENCE_SECONDS
                warnings.warn(
                    f"actor {block} has not answered for {waited / 60:.0f} minutes (process "
                    f"{self.processes[block]} on node {self.nodes[block]}). If it hangs, end that "
                    "process: the block starts again and the run continues by itself",
                    stacklevel=2,
                )

    def _put(self, sent: PyTree) -> Any:
        """Store an argument of all blocks where each node fetches it once."""
        try:
            return self.ray.put(sent)
        except TypeError as error:
            found = re.search(r"cannot pickle .*", str(error))
            why = found[0] if found else _last_line(error)
            raise ValueError(
                f"the method cannot be sent to the actors: {why}; make it of functions and arrays"
            ) from None

    def restart(self, block: int) -> None:
        """See `covey.engines.crew.Crew.restart`."""
        with suppress(self.ray.exceptions.RayError):  # it may be alive and out of reach
            self.ray.kill(self.actors[block])
        self.actors[block] = self._actor_class.remote(sys.path)
        self._open(block)

    def node_of(self, block: int) -> str:
        """See `covey.engines.crew.Crew.node_of`."""
        return self.nodes[block]

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            with suppress(self.ray.exceptions.RayError):
                self.ray.kill(actor)

    def _open(self, block: int) -> None:
        """Wait for an actor, check who it is, and give it its clients."""
        hello = checked(self._answer(block, "hello"))
        self.nodes[block], self.processes[block] = hello.node, hello.process
        self._answer(block, "open", self.shares[block])
        self.starts[block] += 1

    def _answer(self, block: int, name: str, *arguments: Any) -> Any:
        errors = self.ray.exceptions
        try:
            found = self.ray.get(
                self.actors[block].call.remote(name, *arguments), timeout=_START_SECONDS
            )
        except errors.GetTimeoutError:
            raise OSError(
                f"actor {block} has not started within {_START_SECONDS:.0f} s: see `ray status` "
                "for free CPUs, or use fewer actors"
            ) from None
        except (errors.RayActorError, errors.RuntimeEnvSetupError, errors.RayTaskError) as error:
            raise OSError(
                f"actor {block} could not start: {_last_line(error)}; the same version of covey "
                "has to be installed on every node"
            ) from None
        if isinstance(found, _Refused):
            raise ValueError(found.why)
        return found


def each(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    address: str,
    shared: Path,
    at_once: int | None = None,
) -> Iterator[tuple[Task, Result]]:
    """Call a function for every task, each on one CPU of a cluster.

    A task whose process or node dies is started again, elsewhere if need be. After Ctrl-C here, the
    tasks hear it too and have a minute to save themselves; when this process is killed, Ray ends
    them.

    Args:
        function: A function of a module, called with each task. It handles its own errors, and may
            be called again with a task that it has finished.
        tasks: Arguments of the calls.
        address: Address of the cluster, "host:port" or "auto".
        shared: An absolute path that exists and that every node has to see.
        at_once: Most tasks at once. Default: one per CPU of the cluster.

    Yields:
        Each task with its result, as they are finished.

    Raises:
        ValueError: Ray is not installed, or a node has another version of covey or of JAX, or does
            not see the path.
        OSError: No cluster answers, or a task was lost several times.
    """
    ray = connect(address)
    call = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_call)
    given = (sys.path, str(Path.cwd()), str(shared), function)
    waiting, busy = list(reversed(tasks)), {}
    try:
        while waiting or busy:
            while waiting and (at_once is None or len(busy) < at_once):
                task = waiting.pop()
                busy[call.remote(*given, task)] = task
            (done, *_), _ = ray.wait(list(busy), num_returns=1)
            task = busy.pop(done)
            yield task, _returned(ray, task, done)
    finally:
        for one in busy:
            ray.cancel(one)
        if busy:
            ray.wait(list(busy), num_returns=len(busy), timeout=_SAVE_SECONDS)


def _call(
    paths: list[str], folder: str, shared: str, function: Callable[[Task], Result], task: Task
) -> "tuple[Hello, Result | None]":
    """A task, on its node; None where the node does not see the shared path."""
    sys.path.extend(path for path in paths if path not in sys.path)
    hello = Block().hello()
    if not (Path(shared).exists() and Path(folder).exists()):
        return hello, None
    os.chdir(folder)
    return hello, function(task)


def _returned(ray: Any, task: object, done: Any) -> Any:
    errors = ray.exceptions
    try:
        hello, result = ray.get(done)
    except (errors.RayTaskError, errors.RaySystemError) as error:
        if "No module named" in str(error):
            raise ValueError(
                f"a node cannot run it: {_last_line(error)}; the same version of covey has to be "
                "installed on every node"
            ) from None
        raise
    except (errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
        raise OSError(
            f"{task} was lost several times ({_last_line(error)}), perhaps for lack of memory; the "
            "same command resumes it"
        ) from None
    checked(hello)
    if result is None:
        raise ValueError(
            f"node {hello.node} does not see this folder: what is run on a cluster must be on a "
            "path that all nodes share"
        )
    return result


def connect(address: str | None, actors: int | None = None) -> Any:
    """Connect to a cluster, once per process.

    Args:
        address: Its address. Default: a new one on this machine.
        actors: Number of actors that a new one has to have room for.

    Returns:
        The module `ray`.

    Raises:
        ValueError: Ray is not installed, or this is no address.
        OSError: No cluster answers.
    """
    ray = _ray()
    if ray.is_initialized():
        return ray
    if address is None:
        cores = max(os.cpu_count() or 1, actors or 1)
        given = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    else:
        _need_answer(address)
        given = {"address": address}
    with warnings.catch_warnings():
        # Ray starts programs, which replaces the forked process before it can use JAX.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        try:
            ray.init(log_to_driver=False, logging_level="error", **given)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = address or "this machine"
            raise OSError(f"{_no_cluster(where)} ({_last_line(error)})") from None
    return ray


class _Refused:
    """The result of an actor where the user has made a mistake."""

    def __init__(self, why: str):
        self.why = why


class _Actor:
    """A block behind one method, so that a mistake travels as text and not as a trace."""

    def __init__(self, paths: list[str]):
        """`paths`: where the driver finds modules, such as a user's own method."""
        sys.path.extend(path for path in paths if path not in sys.path)
        self.block = Block()

    def call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.block, name)(*arguments)
        except (ValueError, OSError) as error:
            return _Refused(str(error))


# Ray's own variables win. Actors see the devices of their node, and a cluster that is started here
# reports nothing to anybody.
_ENVIRONMENT = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def _ray() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ValueError(
            "a cluster needs Ray, which is not installed: pip install 'covey[cluster]'"
        ) from None
    return ray


def _send_files_of_users() -> None:
    """Methods from a user's own file travel with their code: no node can import the file."""
    from ray import cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith(_USERS):
            cloudpickle.register_pickle_by_value(module)


def _need_answer(address: str) -> None:
    """An error where nothing listens at the address; Ray would wait for it long."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        if address == "auto":
            return
        raise ValueError(
            f"address must be host:port, as `ray start --head` prints it, or 'auto', got "
            f"{address!r}"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise OSError(f"{_no_cluster(address)} ({_last_line(error)})") from None


def _no_cluster(address: str) -> str:
    return (
        f"no Ray cluster answers at {address}: start one with `ray start --head`, or leave the "
        "address out for one on this machine"
    )


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
