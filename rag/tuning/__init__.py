"""Making and using training data: datasets, LoRA training, export."""
