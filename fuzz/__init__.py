"""The harness: sessions, engines, adapters, faults and reports."""
