"""The binding of the C ring: the only folder that calls `csrc/`."""
