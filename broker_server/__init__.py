"""Floor 2: the round coordinator, clustering and aggregation, the broker core and the byte ledger."""
