"""A batch to leaf records in a slot, and back."""
