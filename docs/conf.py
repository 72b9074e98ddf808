"""What Sphinx makes of this folder: the pages as they are, and a reference out of the docstrings. `make docs`."""

import sys
from pathlib import Path

PKG = Path(__file__).resolve().parents[1] / "pkg"
sys.path.insert(0, str(PKG))

import slipring  # noqa: E402

project = "slipring"
author = "The slipring authors"
version = release = slipring.__version__

extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser"]
html_theme = "furo"
html_title = f"slipring {release}"
html_show_sphinx = False
suppress_warnings = ["myst.header"]  # pages begin where GitHub lets them begin

myst_heading_anchors = 3  # links to headings, as GitHub makes them

autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # the docstrings say it, and shorter
numpydoc_show_class_members = False  # autodoc shows them
numpydoc_class_members_toctree = False

# `Name` in a docstring is a link where it names something of this reference, and an error where it names nothing.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r"[a-z_0-9]+"),  # parameters are written alike
    (
        "py:.*",
        r"(numpy|torch|torchdata|torchvision|megengine|paddle|webdataset|pyarrow|ray|multiprocessing|queue)\..*",
    ),
    ("py:class", r"[A-Z]\w+Error|Exception|\w*Warning|object|str|Generic|Protocol"),  # Python's own
]
