"""The interfaces of other loaders over slipring's core: a module each."""
