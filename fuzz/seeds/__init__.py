"""Minimized failures, as data."""
