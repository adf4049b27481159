"""Reports: each only reads a history and its verdict."""
