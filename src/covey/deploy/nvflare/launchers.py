"""How a kit's process starts the process of a study: one stands by with its imports done."""

import shlex
from threading import Lock

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle, ProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env

from covey.deploy.nvflare.standby import Standby


class _Prepared(ProcessJobLauncher):
    """Gives a study to the process that stands by; a second study at the same time gets a new
    process.
    """

    modules: tuple[str, ...] = ()

    def __init__(self):
        super().__init__()
        self._lock = Lock()
        self._standby: Standby | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Let a process stand by from the start, and again after each study."""
        super().handle_event(event_type, fl_ctx)
        if event_type in (EventType.SYSTEM_START, EventType.JOB_COMPLETED):
            with self._lock:
                self._standby = self._standby or Standby(self.modules)

    def launch_job(self, job_meta: dict, fl_ctx: FLContext) -> JobHandleSpec:
        """Start the process of a study."""
        with self._lock:
            standby, self._standby = self._standby, None
        if standby is not None:
            _, flag, module, *arguments = shlex.split(self.get_command(job_meta, fl_ctx))
            assert flag == "-m"
            credentials = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
            process = standby.run(module, arguments, credentials)
            if process is not None:
                return ProcessHandle(process=process)
        return super().launch_job(job_meta, fl_ctx)


class ServerLauncher(_Prepared, ServerProcessJobLauncher):
    """Starts studies at the server."""

    modules = (
        "nvflare.private.fed.app.server.runner_process",
        "covey.deploy.nvflare.controller",
        "covey.deploy.server",
        "covey.deploy.fit_plan",
    )


class SiteLauncher(_Prepared, ClientProcessJobLauncher):
    """Starts studies at a site."""

    modules = (
        "nvflare.private.fed.app.client.worker_process",
        "covey.deploy.nvflare.executor",
        "covey.deploy.site",
        "covey.deploy.fit_part",
    )
