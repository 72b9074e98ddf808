"""Run a part of the benchmark of tokens: ``python -m bench.tokens plans``."""

import sys
from importlib import import_module

PARTS = ("plans", "collation", "corpus")

if __name__ == "__main__":
    chosen = sys.argv.pop(1) if sys.argv[1:2] and not sys.argv[1].startswith("-") else None
    if chosen not in (None, *PARTS):
        sys.exit(f"{chosen!r} is no part: choose one of {', '.join(PARTS)}, or none for all")
    for part in PARTS if chosen is None else [chosen]:
        import_module(f"bench.tokens.{part}").main()
