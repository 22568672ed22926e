"""Questions and numbers: one question bank examines systems (the comparison) and people (study)."""
