"""An actor that hangs is named; without a cluster."""

from types import SimpleNamespace

import pytest

from covey.engines.ray import RayCrew


class TimeoutOfRayError(Exception):
    pass


class SlowRay:
    """Answers at the third time of asking."""

    exceptions = SimpleNamespace(GetTimeoutError=TimeoutOfRayError)

    def __init__(self):
        self.asked = 0

    def get(self, call, *, timeout):
        self.asked += 1
        if self.asked < 3:
            raise TimeoutOfRayError
        return call


def test_an_actor_that_does_not_answer_is_named_with_what_to_do_and_waited_for():
    crew = RayCrew.__new__(RayCrew)
    crew.ray, crew.processes, crew.nodes = SlowRay(), [0, 4711], ["a", "b"]
    with pytest.warns(UserWarning, match="has not answered") as told:
        assert crew._result(1, "answer") == "answer"
    texts = [str(one.message) for one in told]
    assert ["5 minutes" in texts[0], "10 minutes" in texts[1]] == [True, True]
    assert all("process 4711 on node b" in text and "end that process" in text for text in texts)
