"""The worker's side: block tables and slot mappings."""
