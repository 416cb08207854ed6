"""NumPyro models as models of Covey: with effects of each client (`client_plate`), or all shared
(`from_numpyro`).

A hierarchical model is written once, with one plate over clients. Sites inside the plate are a
client's random effects z; the other latent sites are the shared parameters phi:

    def hospitals(x, y, client, clients):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        spread = numpyro.sample("spread", dist.HalfNormal(2))
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("client", clients):
            intercept = numpyro.sample("intercept", dist.Normal(mean, spread))
        numpyro.sample("y", dist.Bernoulli(logits=intercept[client] + x @ weight), obs=y)

    method = covey.fedpop(client_plate(hospitals, data.spec), step_size=0.02)    # rows stay where they are
    MCMC(NUTS(hospitals), ...).run(key, x, y, client, clients=8)                 # the same model, on rows that may be pooled

`client` is the place of each row's client in the plate. A federated client is the only one in its
plate: the model is called with client = 0 for all of its rows and clients = 1.

Parameters are unconstrained: a site with support S has the numbers u = T^-1(value), T =
biject_to(S), and the density

    log p(u) = log p(T(u)) + log |dT/du|

as in NumPyro's own samplers; S may depend on other sites. phi is a dictionary by site, z a vector
of its sites' numbers in the order of their names. The log joint of all rows of all clients is

    log_prior(phi) + sum_i [ law.log_density(phi, z_i) + sum over rows of log_likelihood(phi, z_i,
    row) ]

with the prior of the shared sites counted once. A method that maximises over phi, as FedPop does,
finds the mode of these numbers. `describe` and `coefficients` give values in the terms of the
model.
"""

try:
    import numpyro as _numpyro  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "numpyro":
        raise
    raise ModuleNotFoundError(
        "covey.models.numpyro needs NumPyro: pip install 'covey[numpyro]'", name="numpyro"
    ) from missing

from covey.models.numpyro.adapters import client_plate, from_numpyro

__all__ = ["client_plate", "from_numpyro"]
