"""The REST calls by topic; each file exports a `router`."""
