"""The server's side of a job: messages are tasks of NVFlare, one per site and exchange.

Each site gets its own message, so a task goes to one site; NVFlare's broadcast would send every
site the same bytes.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from covey.deploy.nvflare.transport import Stopped, TaskTransport, Waiting

TASK, MESSAGE = "covey", "message"
STATUS, STOP = "covey.status", "covey.stop"
DONE, STOPPED, WAITING, FAILED = "done", "stopped", "waiting", "failed"
_BLOCKED = {
    ReturnCode.TASK_DATA_FILTER_ERROR: "its own filters blocked a message to it: over its cap",
    ReturnCode.TASK_RESULT_FILTER_ERROR: "its own filters blocked its answer: over its cap",
    ReturnCode.EXECUTION_EXCEPTION: "it could not answer; its console says why",
}
_TOLD_WITHIN = 5.0  # seconds that a study waits for somebody to ask how it ended


class TaskController(Controller):
    """Conducts a study: makes a transport of tasks and hands it to `conduct`."""

    def __init__(self, patience: int = 2, describe: Callable[[bytes], str] | None = None):
        super().__init__()
        self._stop = threading.Event()
        self._abort: Signal | None = None
        self._context = FLContext()
        self._tasks: list[Task] = []
        self._outcome: dict[str, Any] | None = None
        self._told = threading.Event()
        self.note: dict[str, Any] = {}  # the study's own status
        self.transport = TaskTransport(
            self._post,
            self._withdraw,
            self._stop.is_set,
            self._aborted,
            patience=patience,
            describe=describe,
        )

    def conduct(self, transport: TaskTransport, sites: list[str]) -> None:
        """Run the study over the transport.

        Args:
            transport: Exchanges messages with sites.
            sites: Sites that have a process for this job.
        """
        raise NotImplementedError

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Answer the coordinator's questions while the study runs."""
        engine: Any = fl_ctx.get_engine()
        engine.register_app_command(STATUS, self._status)
        engine.register_app_command(STOP, self._ask_to_stop)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the study; an error ends the job and is in the job's status."""
        self._abort, self._context = abort_signal, fl_ctx
        engine: Any = fl_ctx.get_engine()
        sites = [client.name for client in engine.get_clients()]
        self.transport.expect(sites)
        try:
            self.conduct(self.transport, sites)
            self._end(DONE, "")
        except Stopped as stopped:
            self._end(STOPPED, str(stopped))
        except Waiting as waiting:
            self._end(WAITING, str(waiting))
        except (ValueError, OSError, RuntimeError) as error:
            self.log_exception(fl_ctx, f"the study ended: {error}")
            self._end(FAILED, str(error))
            self.system_panic(str(error), fl_ctx)

    def _end(self, how: str, why: str) -> None:
        """Keep the process for a moment, so that the coordinator hears how the study ended."""
        self._told.clear()
        self._outcome = {"how": how, "why": why, "time": time.time()}
        self._told.wait(_TOLD_WITHIN)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left to release."""

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """An answer after its exchange was over."""
        self.transport.count_late()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note which sites ask for work, and which are gone."""
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST:
            peer: Any = fl_ctx.get_peer_context()
            self.transport.saw(peer.get_identity_name())
        elif event_type == EventType.CLIENT_DISCONNECTED:
            self.transport.lose(str(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME)))
        super().handle_event(event_type, fl_ctx)

    def _post(self, site: str, message: bytes) -> None:
        data = Shareable()
        data[MESSAGE] = message
        task = Task(name=TASK, data=data, result_received_cb=self._received)
        self._tasks.append(task)
        self.send(task=task, fl_ctx=self._context, targets=[site])

    def _withdraw(self) -> None:
        for task in self._tasks:
            if task.completion_status is None:
                self.cancel_task(task)
        self._tasks = []

    def _aborted(self) -> bool:
        return self._abort is not None and bool(self._abort.triggered)

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        site: str = client_task.client.name
        result: Any = client_task.result
        code, answer = result.get_return_code(ReturnCode.OK), result.get(MESSAGE)
        if code != ReturnCode.OK:
            self.transport.refuse(site, _BLOCKED.get(code, f"no answer: {code}"))
        elif not isinstance(answer, bytes):
            self.transport.refuse(site, f"an answer of type {type(answer).__name__}, not bytes")
        else:
            self.transport.deliver(site, answer)
        client_task.result = None

    def _status(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        told = {**self.transport.status(), "note": self.note, "outcome": self._outcome}
        if self._outcome is not None:
            self._told.set()
        return told

    def _ask_to_stop(self, topic: str, data: Any, fl_ctx: FLContext) -> dict[str, Any]:
        self._stop.set()
        return {}
