"""Statements over functions handed in, and the symbolic integer they run on."""
