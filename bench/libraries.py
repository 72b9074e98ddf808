"""The libraries in a wheel, for other packages that look for them by their plain names."""

from __future__ import annotations

import os
import re
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

LINKS = Path(__file__).parent / "data" / "libraries"


def search_path(package: str) -> str | None:
    """Return an LD_LIBRARY_PATH that contains ``libx-0123abcd.so.1.2.3`` of the wheel as ``libx.so.1``.

    None if the package is not installed, or contains no libraries.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parents[1] / f"{package}.libs"
    if not bundled.is_dir():
        return None
    links = LINKS / f"{package}-{metadata.version(package)}"
    if not links.exists():
        unfinished = links.with_name(f"{links.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        for library in sorted(bundled.iterdir()):
            if named := re.fullmatch(r"(lib.+)-[0-9a-f]{8}(\.so\.\d+).*", library.name):
                (unfinished / "".join(named.groups())).symlink_to(library)
        try:
            unfinished.rename(links)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return f"{links}:{bundled}"  # the libraries refer to each other by their long names
