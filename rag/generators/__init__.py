"""What writes the answer: `extractive`, `local`, `remote`, and `encoder` for choice questions."""
