"""The REST calls, one resource a file; each file exports `router`."""
