"""A question in, a cited answer out: retrieve, prompt, generate, cite; and tune the generator."""
