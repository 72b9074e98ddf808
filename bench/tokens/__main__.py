"""Measure plans and batches of documents: ``python -m bench.tokens``, or parts: ``python -m bench.tokens plans``."""

import argparse
from importlib import import_module

from bench.machine import describe
from bench.record import Table, finish, option

PARTS = "plans", "collation", "corpus"

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m bench.tokens", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    modules = {part: import_module(f"bench.tokens.{part}") for part in PARTS}
    for module in modules.values():
        module.add_options(parser)
    option(parser)
    options = parser.parse_args()
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    about = describe((), "torch", "transformers", "trl", "grain")
    tables: dict[str, Table] = {}
    for part in options.parts or PARTS:
        tables |= modules[part].tables(options)
    finish(options.record, about, tables)
