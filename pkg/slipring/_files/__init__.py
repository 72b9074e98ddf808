"""Remote files: reads of ranges, repeated attempts, and a cache on a local disk."""
