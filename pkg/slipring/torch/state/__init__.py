"""Where an iteration is: saved, loaded, and told to samplers and streams."""
