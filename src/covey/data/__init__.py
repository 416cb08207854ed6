"""Federated data: storage, splits, partitions, tables and public data sets. Imports `covey.core` only."""

from covey.data.federated import PARTS, FederatedData, Part
from covey.data.loaders import LOADERS, Loader, load
from covey.data.scaling import Scaling
from covey.data.summary import Summary, random_rows, summarise

__all__ = ["LOADERS", "PARTS", "FederatedData", "Loader", "Part", "Scaling", "Summary", "load", "random_rows", "summarise"]
