"""Batches as bytes: pytrees, the codec, default collation, tensors and the cache of samples."""
