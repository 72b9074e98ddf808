"""Workers: what they run, how they start, wait, fail and end."""
