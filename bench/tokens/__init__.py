"""What do plans and collation of tokens cost, and how good are the plans? ``python -m bench.tokens``."""
