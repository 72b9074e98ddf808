"""One stream of batches for all ranks of a machine, against other ways to get it there."""
