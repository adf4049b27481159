"""The reference manager, in the vocabulary of the field."""
