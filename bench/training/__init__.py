"""What does the training of an image network gain? ``python -m bench.training``."""
