"""Worker processes of a sweep: each takes task after task, and none outlives its parent."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection, get_context, parent_process
from typing import Any, TypeVar

from covey.runs import interrupt

_START = "spawn"  # a forked process would share the threads of JAX, which it does not have
Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerLostError(OSError):
    """A worker process ended in the middle of a task."""


def each(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Call a function for every task, in some processes at once.

    With one worker everything runs in this process. Otherwise Ctrl-C or SIGTERM here sends SIGTERM
    to the workers, which a run hears between rounds and saves itself, and workers end by themselves
    when this process is killed.

    Args:
        function: A function of a module, called with each task. It handles its own errors.
        tasks: Arguments of the calls; sent to the workers as bytes.
        workers: Number of processes.

    Yields:
        Each task with its result, as they are finished.

    Raises:
        WorkerLostError: A worker was killed, e.g. for lack of memory.

    Example:
        >>> list(each(abs, [-1, 2], workers=1))
        [(-1, 1), (2, 2)]
    """
    waiting = deque(tasks)
    if workers < 2 or len(waiting) < 2:
        for task in waiting:
            yield task, function(task)
        return
    pool: list[_Worker] = []
    with interrupt.raised():
        try:
            while len(pool) < min(workers, len(waiting)):
                pool.append(_Worker(function))
            busy = {worker.pipe: (worker, worker.give(waiting.popleft())) for worker in pool}
            while busy:
                for pipe in connection.wait(list(busy)):
                    worker, task = busy.pop(pipe)  # pyright: ignore[reportArgumentType]
                    yield task, worker.result(task)
                    if waiting:
                        busy[worker.pipe] = worker, worker.give(waiting.popleft())
        finally:
            for worker in pool:
                worker.process.terminate()
            for worker in pool:
                worker.process.join()


class _Worker:
    """A process, and the parent's end of the pipe to it."""

    def __init__(self, function: Callable[[Any], Any]):
        context = get_context(_START)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, function), daemon=True)
        # The child has the mask of its parent: Ctrl-C in the terminal reaches it too, while it
        # imports, and is for the parent.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def give(self, task: Any) -> Any:
        """Send a task, and return it."""
        self.pipe.send(task)
        return task

    def result(self, task: Any) -> Any:
        """The result of the task."""
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            raise WorkerLostError(
                f"the worker process of {task} ended with exit code {self.process.exitcode}, "
                "perhaps for lack of memory; start again with fewer --workers"
            ) from None


def _work(pipe: connection.Connection, function: Callable[[Any], Any]) -> None:
    """Tasks until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and sends SIGTERM
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        while True:
            pipe.send(function(pipe.recv()))
    except (EOFError, KeyboardInterrupt):
        return


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
