"""What all loaders share. Nothing here is public."""
