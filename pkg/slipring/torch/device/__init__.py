"""Moving a batch to a device: streams, events, and slots that are registered as pinned memory."""
