"""Passes over a dataset: order, dispatch, delivery, state."""
