"""Engines: each decides the next operation."""
