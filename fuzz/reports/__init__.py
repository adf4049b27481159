"""Reports: each reads a history and its verdict."""
