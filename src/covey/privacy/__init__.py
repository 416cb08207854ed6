"""Differential privacy of FA-LD: clipping row by row, accounting by three accountants, budgets.

The protected unit is one row of one client in the client's uploads; see `LangevinMechanism` for the
change of a row that an epsilon covers.
"""

from covey.privacy.accountants import pld, rdp
from covey.privacy.clipping import clipped_sum
from covey.privacy.ledger import Budget, BudgetSpentError, Ledger
from covey.privacy.mechanism import LangevinMechanism, participation
from covey.privacy.planning import Proposal, plan
from covey.privacy.theorem import Deltas, Guarantee, guarantee, largest_permitted, theorem

__all__ = [
    "Budget",
    "BudgetSpentError",
    "Deltas",
    "Guarantee",
    "LangevinMechanism",
    "Ledger",
    "Proposal",
    "clipped_sum",
    "guarantee",
    "largest_permitted",
    "participation",
    "plan",
    "pld",
    "rdp",
    "theorem",
]
