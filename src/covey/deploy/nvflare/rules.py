"""The rules in a kit: which classes a job may name, that it brings no code, who may ask for what.

Each participant enforces the rules in its own kit; no message of the server changes them.
"""

import json
from pathlib import Path
from typing import Any

COORDINATOR_ROLE = "lead"
CONTROLLER = "covey.deploy.nvflare.controller.StudyController"
EXECUTOR = "covey.deploy.nvflare.executor.StudyExecutor"
CAP = "covey.deploy.nvflare.filters.PayloadCap"
MOST_BYTES = 256 * 2**20  # of one message, unless the site's owner says otherwise

_TELLING = (  # loggers that say who comes and goes
    "nvflare.private.fed.server.client_manager",
    "nvflare.private.fed.server.fed_server",
    "nvflare.private.fed.client.fed_client",
)
HEARTBEAT = 4  # seconds between two signs of life of a site
_NOT_HEARD = 4 * HEARTBEAT  # seconds after which a site that gives none is gone
_RIGHTS = {
    "submit_job": "any",
    "manage_job": "n:submitter",
    "app_command": "n:submitter",
    "view": "any",
    "download_job": "none",
    "clone_job": "none",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}


def write_server(kit: Path) -> None:
    """The server's rules. Paths come when it starts (`server_resources`): a kit may be moved."""
    _write(kit / "local" / "authorization.json", _authorization())
    _write(kit / "local" / "log_config.json", _logging())
    _prune(kit)


def server_resources(kit: Path) -> None:
    """Write the components of the server's process, with the folders of this kit."""
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    snapshots = {"root_dir": str(kit / "snapshots"), "uri_root": "/"}
    persistor = {"uri_root": "/", "storage": {"path": storage, "args": snapshots}}
    _write(
        kit / "local" / "resources.json",
        {
            "format_version": 2,
            **_classes(*_allowed(kit) or [CONTROLLER]),
            "servers": [
                {
                    "admin_storage": "transfer",
                    "max_num_clients": 1000,
                    "heart_beat_timeout": _NOT_HEARD,
                    "admin_timeout": 10.0,
                }
            ],
            "snapshot_persistor": {
                "path": "nvflare.app_common.state_persistors.storage_state_persistor"
                ".StorageStatePersistor",
                "args": persistor,
            },
            "components": [
                _component(
                    "job_scheduler",
                    "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                    max_jobs=4,
                    min_schedule_interval=1.0,
                    max_schedule_interval=5.0,
                ),
                _component(
                    "job_manager",
                    "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                    uri_root=str(kit / "jobs"),
                    job_store_id="job_store",
                ),
                _component("job_store", storage),
                _component(
                    "process_launcher",
                    "covey.deploy.nvflare.launchers.ServerLauncher",
                ),
            ],
        },
    )


def allow(kit: Path, *classes: str) -> None:
    """Let a kit's owner allow more classes than Covey's own, e.g. those of a benchmark."""
    path = kit / "local" / "resources.json"
    if not path.exists():
        server_resources(kit)
    content = json.loads(path.read_text("utf-8"))
    _write(path, {**content, **_classes(*_allowed(kit), *classes)})


def write_site(kit: Path) -> None:
    """A site's rules: one executor, no code, a cap on every message in either direction."""
    _write(kit / "local" / "authorization.json", _authorization())
    _write(kit / "local" / "log_config.json", _logging())
    _write(
        kit / "local" / "resources.json",
        {
            "format_version": 2,
            **_classes(EXECUTOR, CAP),
            "allow_log_streaming": False,
            "client": {"retry_timeout": 30, "compression": "Gzip"},
            "components": [
                _component(
                    "resource_manager",
                    "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
                    num_of_gpus=0,
                    mem_per_gpu_in_GiB=0,
                ),
                _component(
                    "resource_consumer",
                    "nvflare.app_common.resource_consumers.gpu_resource_consumer"
                    ".GPUResourceConsumer",
                ),
                _component(
                    "process_launcher",
                    "covey.deploy.nvflare.launchers.SiteLauncher",
                ),
            ],
        },
    )
    cap_messages(kit, MOST_BYTES)
    _prune(kit)


def cap_messages(kit: Path, most_bytes: int) -> None:
    """Write the cap on messages into a site's kit."""
    cap = [{"path": CAP, "args": {"most_bytes": most_bytes}}]
    scope = {"name": "site", "task_data_filters": cap, "task_result_filters": cap}
    _write(kit / "local" / "privacy.json", {"scopes": [scope], "default_scope": "site"})


def write_coordinator(kit: Path) -> None:
    """The coordinator has credentials and no rules."""
    _prune(kit)


def _allowed(kit: Path) -> list[str]:
    path = kit / "local" / "resources.json"
    return json.loads(path.read_text("utf-8"))["class_allow_list"] if path.exists() else []


def _classes(*allowed: str) -> dict[str, Any]:
    return {"class_list_enforcement_mode": "enforce", "class_allow_list": list(allowed)}


def _authorization() -> dict[str, Any]:
    return {"format_version": "1.0", "permissions": {COORDINATOR_ROLE: _RIGHTS}}


def _logging() -> dict[str, Any]:
    """Warnings, and who comes and goes: NVFlare's own choice is some fifty lines per exchange."""
    line = "nvflare.fuel.utils.log_utils.BaseFormatter"
    form = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
    to_file = {
        "class": "logging.handlers.RotatingFileHandler",
        "formatter": "lines",
        "filename": "log.txt",
        "maxBytes": 10_000_000,
        "backupCount": 3,
    }
    to_console = {
        "class": "logging.StreamHandler",
        "formatter": "lines",
        "stream": "ext://sys.stdout",
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": line, "fmt": form}},
        "handlers": {"file": to_file, "console": to_console},
        "loggers": {
            "root": {"level": "WARNING", "handlers": ["file", "console"]},
            **{name: {"level": "INFO"} for name in _TELLING},
        },
    }


def _component(name: str, path: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}


def _prune(kit: Path) -> None:
    """Remove files that only NVFlare's console needs: scripts, samples, notebooks."""
    for pattern in ("readme.txt", "startup/*.sh", "startup/*.ipynb", "startup/readme.txt"):
        for path in kit.glob(pattern):
            path.unlink()
    if (kit / "local" / "authorization.json").exists():
        for path in [*kit.glob("local/*.default"), *kit.glob("local/*.sample")]:
            path.unlink()


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
