"""Conformance vectors: data only."""
