"""The private modules that all loaders and queues share: the ring, the codec, collation, workers and iteration."""
