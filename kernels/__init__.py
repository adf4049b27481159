"""Device code that fills, reads and compares cache slots."""
