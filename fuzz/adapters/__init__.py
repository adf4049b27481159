"""Adapters: each drives one allocator under test."""
