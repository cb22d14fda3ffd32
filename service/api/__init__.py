"""Thin routers, one per resource: they decode, open the transaction, call, and encode."""
