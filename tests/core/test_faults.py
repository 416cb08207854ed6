import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core.faults import ARRIVES, LATE, LOST_DOWN, LOST_UP, REPEATED, Faults, fate
from covey.core.keys import root_key


def test_fates_come_as_often_as_asked():
    faults = Faults(dropout=0.2, straggler=0.3, repeat=0.1)
    fates = np.asarray(jax.vmap(lambda i: fate(faults, root_key(0), 4, i))(jnp.arange(8000)))
    for kind, chance in {
        LOST_DOWN: 0.1,
        LOST_UP: 0.1,
        LATE: 0.3,
        REPEATED: 0.1,
        ARRIVES: 0.4,
    }.items():
        assert abs(np.mean(fates == kind) - chance) < 4 * np.sqrt(chance * (1 - chance) / 8000)


def test_without_faults_everything_arrives():
    fates = jax.vmap(lambda i: fate(Faults(), root_key(0), 0, i))(jnp.arange(1000))
    assert np.all(np.asarray(fates) == ARRIVES)


@pytest.mark.parametrize(
    "faults",
    [Faults(dropout=-0.1), Faults(dropout=0.6, straggler=0.5), Faults(straggler=float("nan"))],
)
def test_bad_probabilities(faults):
    with pytest.raises(ValueError, match="at least 0 and add up to at most 1"):
        faults.checked()


@pytest.mark.parametrize("faults", [Faults(dropout=1.0), Faults(dropout=0.4, straggler=0.6)])
def test_faults_that_leave_no_upload_are_refused(faults):
    with pytest.raises(ValueError, match="no upload would ever arrive"):
        faults.checked()


def test_probabilities_may_add_up_to_one():
    assert Faults(0.1, 0.2, 0.7).checked() == Faults(0.1, 0.2, 0.7)
