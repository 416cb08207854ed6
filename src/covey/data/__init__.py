"""Federated data: storage, splits, partitions and tables. Imports `covey.core` only."""

from covey.data.federated import SPLITS, FederatedData, Split
from covey.data.scaling import Scaling
from covey.data.summary import Summary, random_rows, summarise

__all__ = ["SPLITS", "FederatedData", "Scaling", "Split", "Summary", "random_rows", "summarise"]
