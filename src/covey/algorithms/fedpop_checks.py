"""Checks of FedPop's options, and of the plan of a run."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from covey.algorithms.fedpop_additions import Anneal, temperature
from covey.algorithms.joint import Joint
from covey.core.algorithm import Plan
from covey.core.cohort import Sampler
from covey.models.effects import Law
from covey.models.mixed import MixedModel

_ROUNDS_TO_TRY, _CLIENTS_TO_TRY = 64, 2**20  # in cohorts that are checked for unequal weights


def check_positive(**options: int | float | None) -> None:
    """Errors for values that are given and not above 0, by the name of the option."""
    for name, value in options.items():
        if value is not None and not value > 0:
            raise ValueError(f"fedpop: {name} must be above 0, got {value:g}")


def check_at_least(least: int, **options: int | None) -> None:
    """Errors for counts that are given and too small, by the name of the option."""
    for name, value in options.items():
        if value is not None and value < least:
            raise ValueError(f"fedpop: {name} must be at least {least}, got {value}")


def check_phi(
    phi_rate: float | None,
    batch_size: int | None,
    phi_box: tuple[float, float] | None,
    phi_radius: float | None,
) -> None:
    """Errors for options of phi that do not fit each other."""
    if batch_size is not None and phi_rate is None:
        raise ValueError(
            "fedpop: batch_size is of the pass over the rows that phi_rate asks for; give both, or "
            "neither"
        )
    if phi_box is not None and phi_radius is not None:
        raise ValueError("fedpop: phi_box and phi_radius are two projections of phi; give one")
    if phi_box is not None and not phi_box[0] < phi_box[1]:
        raise ValueError(
            f"fedpop: phi_box is a lower bound and a larger upper bound, got {phi_box}"
        )


def check_choices(scaling: str, average: float | None, anneal: Anneal | None) -> None:
    """Errors for options that are not offered."""
    if scaling not in ("inverse_probability", "ratio"):
        raise ValueError(
            f"fedpop: scaling must be 'inverse_probability' or 'ratio', got {scaling!r}"
        )
    if average is not None and not 0 < average <= 1:
        raise ValueError(
            f"fedpop: average is a share of the rounds, above 0 and at most 1, got {average:g}"
        )
    if anneal is not None and not (anneal[0] >= 1 and anneal[1] >= 1):
        raise ValueError(
            f"fedpop: anneal is a temperature of at least 1 and a count of rounds, got {anneal}"
        )


def check_by_itself(**settings: object) -> None:
    """An error for options that need a step size."""
    given = [name for name, value in settings.items() if value is not None]
    if given:
        raise ValueError(
            f"fedpop: {'=, '.join(given)}= needs a given step_size=; give both, or leave it out "
            "and let fedpop determine all settings from the data"
        )


def check_law(
    joint: Joint,
    effects: Law | None,
    phi_rate: float | None,
    *,
    centred: bool,
    learns_beta: bool,
) -> None:
    """Errors for options that do not fit the law of the effects."""
    model, law = joint
    if model.law is not None and effects is not None:
        raise ValueError(f"fedpop: {model.name} has its own law of the effects; leave effects= out")
    if model.law is not None and phi_rate is not None:
        raise ValueError(
            f"fedpop: phi of {model.name} has the law of its effects in it, whose gradient has no "
            "rows to pass over; leave phi_rate= out"
        )
    if (model.law is not None or not law.learned) and learns_beta:
        raise ValueError(
            "fedpop: this law of the effects has no parameters to learn; leave beta_optimizer= and "
            "beta_prior= out"
        )
    if not centred and (law.transport is None or not law.learned):
        raise ValueError(
            "fedpop: centred=False needs a Gaussian law of the effects that is learned, "
            "models.gaussian()"
        )


def check_plan(plan: Plan, *, scaling: str, anneal: Anneal | None) -> None:
    """An error for cohorts that the scaling does not fit; a warning for unfinished annealing."""
    if scaling == "ratio" and not _equally_likely(plan.sampler):
        raise ValueError(
            "fedpop: scaling='ratio' multiplies the mean over a cohort by the number of clients, "
            "which is the sum over all clients only where each is as likely to take part as any "
            "other; with these cohorts clients count unequally: use "
            "scaling='inverse_probability', or cohorts that are full, uniform or bernoulli with "
            "one probability"
        )
    if anneal is not None and plan.rounds is not None and plan.rounds < anneal[1]:
        last = float(temperature(anneal, jnp.int32(plan.rounds)))
        warnings.warn(
            f"fedpop: annealing takes {anneal[1]} rounds and the run has {plan.rounds}, so that "
            f"the shared parameters are those of a likelihood at temperature {last:.3g} and not "
            "at 1; ask for more rounds, or anneal in fewer",
            stacklevel=2,
        )


def warn_of_limits(model: MixedModel, phi: PyTree, z: Float[Array, " effects"]) -> None:
    """A warning for a split that leaves one side empty, which is another method."""
    if not jax.tree.leaves(phi):
        warnings.warn(
            f"fedpop: {model.name} shares no parameters, only the law of the effects", stacklevel=2
        )
    if z.size == 0:
        warnings.warn(
            f"fedpop: {model.name} has no effects: this is FedSGD on the shared parameters",
            stacklevel=2,
        )


def _equally_likely(sampler: Sampler) -> bool:
    """Whether all clients have the same weight in the cohorts of some rounds."""
    if sampler.alike:
        return True
    rounds = jnp.arange(max(1, min(_ROUNDS_TO_TRY, _CLIENTS_TO_TRY // max(sampler.slots, 1))))
    keys = jax.random.split(jax.random.key(0), len(rounds))
    cohorts = jax.jit(jax.vmap(sampler.sample))(keys, rounds)
    weights = np.asarray(cohorts.weight)[np.asarray(cohorts.mask)]
    return len(weights) == 0 or np.allclose(weights, weights[0])
