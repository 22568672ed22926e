"""Books in, searchable passages out. Knows nothing of language models."""
