"""slipring's loader in the place of torch's."""
