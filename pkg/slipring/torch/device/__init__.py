"""A batch's way to a device: streams, events, slots registered as pinned memory."""
