"""``slipring`` and ``python -m slipring``: one file for each command, imported when it is used."""
