"""Where an iteration is: saved, and loaded by samplers and streams."""
