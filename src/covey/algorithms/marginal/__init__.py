"""The marginal method: maximum likelihood, REML and the posterior of mixed models, by sums.

`method.py` is the factory. A client's side: `parameters.py` theta and its coordinates, `client.py`
its term of the log-likelihood, `products.py` the cross products in its state, `answers.py` its
upload. The server's: `initialisation.py`, `state.py` and `rounds.py` the damped Newton steps,
`fit.py` the importance draws, `law.py` the result. `checks.py` has the errors and warnings for
options and data.
"""

from covey.algorithms.marginal.method import marginal

__all__ = ["marginal"]
