"""Graphs and mixing matrices against closed forms, and what is refused."""

import importlib.util

import numpy as np
import pytest

from covey import topology


@pytest.mark.parametrize("peers", [1, 2, 5, 12])
@pytest.mark.parametrize(
    "make", [topology.complete(), topology.ring(), topology.grid(), topology.erdos_renyi(rounds=3)]
)
def test_matrices_are_symmetric_and_doubly_stochastic(make, peers):
    matrices = make(peers)
    np.testing.assert_allclose(matrices.sum(1), 1)
    np.testing.assert_allclose(matrices, matrices.swapaxes(1, 2))
    assert np.all(matrices >= 0)
    assert np.all(np.diagonal(matrices, axis1=1, axis2=2) > 0)
    topology.mixed_by(matrices)  # and pass the check of matrices that users give


def test_the_complete_graph_is_the_mean():
    np.testing.assert_allclose(topology.complete()(7)[0], 1 / 7)
    assert topology.contraction(topology.complete()(7)) == pytest.approx(0, abs=1e-12)


def test_a_ring_mixes_as_its_eigenvalues_say():
    """W is circulant with 1/3 on three diagonals: its eigenvalues are (1 + 2 cos(2 pi k / n)) /
    3.
    """
    n = 10
    assert topology.contraction(topology.ring()(n)) == pytest.approx(
        (1 + 2 * np.cos(2 * np.pi / n)) / 3
    )


def test_a_grid_has_its_neighbours():
    """Three by four: corners have two neighbours, edges three, the middle four."""
    degree = ((topology.grid()(12)[0] > 0).sum(1) - 1).reshape(3, 4)
    assert degree.tolist() == [[2, 3, 3, 2], [3, 4, 4, 3], [2, 3, 3, 2]]
    assert topology.grid()(12)[0][0, 4] == pytest.approx(1 / 4)  # degrees 2 and 3


def test_a_random_graph_has_its_share_of_edges_and_another_seed_other_ones():
    n, p = 40, 0.3
    matrices = topology.erdos_renyi(probability=p, rounds=20)(n)
    edges = (matrices > 0).sum((1, 2)) / 2 - n / 2
    pairs = n * (n - 1) / 2
    assert abs(edges.mean() - p * pairs) < 4 * np.sqrt(p * (1 - p) * pairs / 20)
    assert not np.array_equal(matrices[0], matrices[1])
    assert not np.array_equal(matrices[0], topology.erdos_renyi(probability=p, seed=1)(n)[0])


def test_a_graph_of_given_edges(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("0,1\n1,2\n2,3\n")
    line = topology.custom(path)(4)
    np.testing.assert_allclose(line, topology.custom([(0, 1), (2, 1), (3, 2)])(4))
    np.testing.assert_allclose(line[0][1], [1 / 3, 1 / 3, 1 / 3, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: topology.custom([(0, 1), (2, 3)])(4),
            "in 2 parts that never hear of each other: 0, 1; 2, 3; add edges",
        ),
        (lambda: topology.custom([(0, 4)])(4), r"peers 0 to 3, got \(0, 4\)"),
        (lambda: topology.custom([(1, 1)])(4), r"got \(1, 1\)"),
        (lambda: topology.custom(np.array([(1, 2, 3)])), "pairs of peers"),
        (lambda: topology.mixed_by([[0.5, 0.5], [0.4, 0.5]]), r"row 1 adds up to 0.9"),
        (lambda: topology.mixed_by([[1.5, -0.5], [-0.5, 1.5]]), "at least 0; row 0"),
        (lambda: topology.mixed_by([[0, 1], [1, 0]]), "W_ii must be above 0; that of peer 0"),
        (
            lambda: topology.mixed_by([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]),
            "symmetric",
        ),
        (lambda: topology.mixed_by(np.eye(3)), "in 3 parts"),
        (lambda: topology.mixed_by(np.eye(1))(3), "of 1 peers, the data have 3"),
        (
            lambda: topology.mixed_by([1.0, 2.0]),
            r"square, and several are stacked; got the shape \(2,\)",
        ),
        (lambda: topology.erdos_renyi(probability=0.01)(50), "take about 0.16 or more"),
        (lambda: topology.erdos_renyi(probability=0.0), r"in \(0, 1\]"),
    ],
)
def test_what_is_no_network_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_networks_that_are_connected_only_over_time_are_allowed():
    halves = np.stack([np.kron(np.eye(2), np.full((2, 2), 0.5)), np.eye(4)])
    halves[1, 1:3, 1:3] = 0.5
    assert topology.mixed_by(halves)(4).shape == (2, 4, 4)
    assert topology.contraction(halves) < 1


@pytest.mark.skipif(importlib.util.find_spec("cvxpy") is None, reason="cvxpy is an extra")
def test_the_fastest_weights_are_faster_than_metropolis():
    slow, fast = (
        topology.contraction(topology.grid(weights=weights)(12))
        for weights in ("metropolis", "fastest")
    )
    assert fast < 0.95 * slow
    topology.mixed_by(topology.grid(weights="fastest")(12))


@pytest.mark.skipif(importlib.util.find_spec("cvxpy") is not None, reason="cvxpy is there")
def test_without_cvxpy_the_error_names_what_to_install():
    with pytest.raises(ValueError, match=r"pip install 'covey\[topology\]'"):
        topology.ring(weights="fastest")(4)
