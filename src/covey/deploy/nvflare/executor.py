"""A site's side of a study as an NVFlare job: bytes in, bytes out.

The process of the job lives as long as the study, so compiled programs stay warm. What a message
means, and whether it is answered, is the handler's business.
"""

import os
from collections.abc import Callable

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from covey.deploy.nvflare.launch import SITE_FILE
from covey.deploy.nvflare.tasks import MESSAGE, TASK


class StudyExecutor(Executor):
    """Answers every task with the handler that `open_handler` makes once, when the job starts."""

    def __init__(self):
        super().__init__()
        self._handler: Callable[[bytes], bytes] | None = None
        self._close: Callable[[], None] | None = None

    def open_handler(self) -> Callable[[bytes], bytes]:
        """The handler of messages, made from the site's own file.

        Nothing of it comes from the job: the site's process was started with the file's name.
        """
        from covey.deploy.site import open_handler

        handler = open_handler(os.environ[SITE_FILE])
        self._close = handler.close
        return handler

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Open the handler before the first task, and close it after the last."""
        if event_type == EventType.START_RUN:
            self._handler = self.open_handler()
        elif event_type == EventType.END_RUN and self._close is not None:
            self._close()
        super().handle_event(event_type, fl_ctx)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Hand a message to the handler and return its answer."""
        message = shareable.get(MESSAGE)
        if task_name != TASK or not isinstance(message, bytes) or self._handler is None:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        reply = make_reply(ReturnCode.OK)
        reply[MESSAGE] = self._handler(message)
        return reply
