"""One metric a file: formula, edge cases, source. None means unscored, never zero."""
