"""Per-group managers, one file a kind."""
