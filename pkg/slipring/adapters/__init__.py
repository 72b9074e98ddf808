"""Adapters of other loaders over slipring's: one module each, with their signatures."""
