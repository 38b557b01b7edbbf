"""The source of truth of the control plane: small JSON files, created only if absent and never changed."""

from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.ledger.store import LocalStore, Store

__all__ = ["Ledger", "LocalStore", "Store", "open_ledger"]
