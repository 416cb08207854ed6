"""The marginal method: maximum likelihood, REML and the posterior of mixed models, by sums.

`method.py` is the factory. A client's side: `parameters.py` theta and its coordinates, `client.py`
its term of the log-likelihood, `products.py` cross products that it keeps, `answers.py` what it
sends. The server's: `start.py`, `state.py` and `rounds.py` the damped Newton steps, `fit.py` the
importance draws, `law.py` what comes out, `checks.py` what is told about it.
"""

from covey.algorithms.marginal.method import marginal

__all__ = ["marginal"]
