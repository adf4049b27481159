"""Excerpts of public request traces, as data."""
