"""Measurements behind `docs/benchmarks.md`; each result is printed as JSON in the last line."""
