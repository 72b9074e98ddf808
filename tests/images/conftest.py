"""The tests of slipring.images need Pillow; the package itself does not."""

import importlib.util

if importlib.util.find_spec("PIL") is None:
    collect_ignore_glob = ["test_*.py"]
