"""How private FA-LD is: rows clipped one by one, what a round reveals, what that costs by three
accountants, and a budget.
"""

from covey.privacy.accountants import pld, rdp
from covey.privacy.clipping import clipped_sum
from covey.privacy.ledger import Budget, BudgetSpentError, Ledger
from covey.privacy.mechanism import Mechanism, participation
from covey.privacy.planning import Proposal, plan
from covey.privacy.theorem import Deltas, Guarantee, guarantee, largest_permitted, theorem

__all__ = [
    "Budget",
    "BudgetSpentError",
    "Deltas",
    "Guarantee",
    "Ledger",
    "Mechanism",
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
