"""What a running job does, seen from its own process or from another one: snapshots, activities, rates and verdicts."""
