"""NumPyro models as models of Covey: with random effects for each client (`client_plate`), or with
all parameters shared (`from_numpyro`).

A hierarchical model is written once, with one plate over clients, and runs federated and pooled:

    def hospitals(x, y, client, clients):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        spread = numpyro.sample("spread", dist.HalfNormal(2))
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("client", clients):
            intercept = numpyro.sample("intercept", dist.Normal(mean, spread))
        numpyro.sample("y", dist.Bernoulli(logits=intercept[client] + x @ weight), obs=y)

    covey.fedpop(client_plate(hospitals, data.spec), step_size=0.02)  # rows stay where they are
    MCMC(NUTS(hospitals), ...).run(key, x, y, client, clients=8)      # rows that may be pooled

Parameters are unconstrained: a site with support S has the values u = T^-1(value), T =
biject_to(S), and the density

    log p(u) = log p(T(u)) + log |dT/du|

as in NumPyro's own samplers; S may depend on other sites. phi is a dictionary by site, z a vector
of its sites' values in the order of their names. The log joint of all rows of all clients is

    log_prior(phi) + sum_i [law.log_density(phi, z_i) + sum_r log_likelihood(phi, z_i, row r)]

with the prior of the shared sites counted once. A method that maximises over phi, as FedPop does,
finds the mode of these values. `describe` and `coefficients` give values in the terms of the model.
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
