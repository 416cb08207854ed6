"""What runs in the processes of `benchmarks/deploy.py`: averaging, over Covey's messages and by
NVFlare's own workflow. A site writes when it gets each message.
"""

import os
import time
from pathlib import Path

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg

from covey.core import wire
from covey.deploy.nvflare.executor import StudyExecutor
from covey.deploy.nvflare.launch import SITE_FILE
from covey.deploy.nvflare.tasks import TaskController


def note() -> None:
    """Write the time beside the site's file."""
    with Path(os.environ[SITE_FILE]).open("a") as file:
        file.write(f"{time.perf_counter()}\n")


class CoveyAveraging(TaskController):
    """Sends an array to every site and averages what they return."""

    def __init__(self, rounds: int, values: int, resume: bool = False):
        super().__init__()
        self._rounds, self._values = rounds, values

    def conduct(self, transport, sites):
        mean = np.zeros(self._values, np.float32)
        for _ in range(self._rounds):
            messages = dict.fromkeys(sites, wire.pack(mean))
            answers = transport.exchange(messages, deadline=60.0, quorum=len(sites))
            mean = np.mean([wire.unpack(one, mean) for one in answers.values()], axis=0)


class CoveyTraining(StudyExecutor):
    """Adds one to the array."""

    def open_handler(self):
        def handle(message: bytes) -> bytes:
            note()
            values = (len(message) - 8) // 4
            return wire.pack(wire.unpack(message, np.zeros(values, np.float32)) + np.float32(1))

        return handle


class NvflareAveraging(FedAvg):
    """NVFlare's averaging of the same array, which is not written to disk."""

    def __init__(self, rounds: int, values: int, resume: bool = False):
        model = {"x": np.zeros(values, np.float32)}
        super().__init__(num_clients=3, num_rounds=rounds, persistor_id="", model=model)

    def save_model(self, model):
        pass


class NvflareTraining(Executor):
    """Adds one to the array."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        note()
        model = FLModelUtils.from_shareable(shareable)
        params = {"x": model.params["x"] + np.float32(1)}
        return FLModelUtils.to_shareable(FLModel(params=params, params_type=model.params_type))
