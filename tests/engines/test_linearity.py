"""Which methods can run between peers: those whose server's step is linear in the sum."""

import optax
import pytest
from methods import METHODS, remembering
from problems import linear_gaussian

from covey import models, topology
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedavg_plus import fedavg_plus
from covey.algorithms.fedem import fedem
from covey.algorithms.mixture import mixture
from covey.engines.peers import Peers, _check


def between_peers(method):
    return Peers(method, linear_gaussian(sizes=(7, 20, 12)).data, topology=topology.ring(), seed=0)


def network(optimizer):
    """A method whose state is far from zero at the start."""
    return fedavg(
        models.mlp(hidden=(4,), outcome="number"),
        server_optimizer=optimizer,
        batch_size=None,
        steps=1,
    )


NOT_LINEAR = r"not linear in the sum of the uploads \(.*\), .* SGD"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: network(optax.adam(1e-4)), NOT_LINEAR),
        pytest.param(lambda: network(optax.yogi(1e-4)), NOT_LINEAR, marks=pytest.mark.slow),
        pytest.param(lambda: network(optax.sign_sgd(1e-5)), NOT_LINEAR, marks=pytest.mark.slow),
        pytest.param(
            lambda: mixture(
                models.linear(),
                components=2,
                server_optimizer=optax.sign_sgd(1e-4),
                batch_size=None,
                steps=1,
            ),
            NOT_LINEAR,
            marks=pytest.mark.slow,
        ),
        (lambda: fedem(models.gaussian_mixture(components=2)), "not linear in the sum"),
        (METHODS["fedpa"], "not linear in the sum"),  # linear until its burn-in ends
        (lambda: fedavg_plus(models.linear()), "fine-tunes what a server sends"),
        (METHODS["fald"], "samples with a server"),
    ],
)
def test_methods_that_need_a_server_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        between_peers(method())


@pytest.mark.parametrize(
    "method",
    [
        remembering,
        pytest.param(lambda: network(optax.sgd(1e-4)), marks=pytest.mark.slow),
        lambda: network(optax.sgd(0.5, momentum=0.9, nesterov=True)),
        pytest.param(
            lambda: network(optax.sgd(optax.exponential_decay(1.0, 1, 0.5))), marks=pytest.mark.slow
        ),
    ],
)
def test_methods_with_a_linear_step_pass(method):
    between_peers(method())


def test_what_is_no_topology_is_refused():
    with pytest.raises(TypeError, match=r"e\.g\. covey\.topology\.ring\(\)"):
        _check(fedavg(models.linear()), topology.ring)  # not called
