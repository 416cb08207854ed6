"""Local samplers and optimisers. A sampler is a `Kernel`; `KERNELS` names them."""

from collections.abc import Callable

from covey.kernels.hamiltonian import hmc, nuts, sghmc
from covey.kernels.independence import independence
from covey.kernels.kernel import Kernel, sample
from covey.kernels.langevin import mala, sgld, ula
from covey.kernels.preconditioned import ornstein_uhlenbeck, psgld

KERNELS: dict[str, Callable[..., Kernel]] = {
    "ula": ula,
    "sgld": sgld,
    "mala": mala,
    "ornstein_uhlenbeck": ornstein_uhlenbeck,
    "independence": independence,
    "psgld": psgld,
    "sghmc": sghmc,
    "hmc": hmc,
    "nuts": nuts,
}
"""Samplers by name. The first line of a factory's docstring is its description."""

__all__ = [
    "KERNELS",
    "Kernel",
    "hmc",
    "independence",
    "mala",
    "nuts",
    "ornstein_uhlenbeck",
    "psgld",
    "sample",
    "sghmc",
    "sgld",
    "ula",
]
