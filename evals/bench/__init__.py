"""Measurements behind `docs/benchmarks.md`: ratios side by side in one run, the last line JSON."""
