"""Samples to a batch, stacked straight into the slot."""
