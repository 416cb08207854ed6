"""The marginal likelihood by sums against pooled fits, closed forms and limit cases."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey import models
from covey.algorithms.marginal import marginal
from covey.data.federated import FederatedData

from . import pooled


def fitted(model, data, rounds=15, **options):
    return covey.run(marginal(model, **options), data, rounds=rounds, seed=0, progress=False)
