"""What must hold: the executable specification of a paged KV-cache manager."""
