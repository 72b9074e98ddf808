"""Datasets of images: where encoded bytes come from, and how batches of them are made."""
