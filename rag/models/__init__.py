"""Language models on disk and in memory: what they can do, what they need, how they are loaded."""
