"""The job of a study: two small files of configuration, and no code."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.deploy.nvflare import rules
from covey.deploy.nvflare.tasks import TASK

# Seconds between two requests of a site for work. A round takes about half of it longer; a site
# that waits for others asks so often.
POLLING = 0.1


def write_job(
    folder: Path,
    name: str,
    sites: Sequence[str],
    *,
    settings: dict[str, Any],
    controller: str = rules.CONTROLLER,
    executor: str = rules.EXECUTOR,
    polling: float = POLLING,
) -> Path:
    """Write the folder that NVFlare takes as a job.

    Args:
        folder: Parent of the job's folder.
        name: Name of the study.
        sites: Sites that take part.
        settings: Arguments of the controller.
        controller: Class that conducts the study at the server.
        executor: Class that answers messages at a site.
        polling: Seconds between two requests of a site for work.

    Returns:
        The job's folder.
    """
    job = folder / name
    config = job / "app" / "config"
    config.mkdir(parents=True)
    _write(
        job / "meta.json",
        {
            "name": name,
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"app": ["server", *sites]},
        },
    )
    _write(
        config / "config_fed_server.json",
        {
            "format_version": 2,
            "server": {"task_request_interval": polling},
            "workflows": [{"id": "study", "path": controller, "args": settings}],
            "components": [],
        },
    )
    _write(
        config / "config_fed_client.json",
        {
            "format_version": 2,
            "executors": [{"tasks": [TASK], "executor": {"path": executor, "args": {}}}],
            "task_data_filters": [],
            "task_result_filters": [],
            "components": [],
        },
    )
    return job


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
