"""kvproof: an executable specification of a paged KV-cache manager, and the harness that checks it."""
