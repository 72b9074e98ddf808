"""slipring's loader in place of torch's."""
