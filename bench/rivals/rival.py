"""What a rival is."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rival:
    """One rival.

    Parameters
    ----------
    key, label
        Its name; its name in reports.
    module
        Its file in this folder.
    needs
        The modules that it imports.
    packages
        The distributions whose versions matter.
    by_name
        Whether it runs only if ``--rivals`` names it.
    remedy
        What to do where it is missing.
    libraries_of
        A package whose bundled libraries it looks for, by their plain names.
    whole
        Its decoder is compared by whole pictures, because it draws its boxes itself.
    options
        What its functions are called with besides: rows of one module.
    """

    key: str
    label: str
    module: str
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    by_name: bool = False
    remedy: str = ""
    libraries_of: str | None = None
    whole: bool = False
    options: Mapping[str, object] = field(default_factory=dict)

    def missing(self) -> str | None:
        """Import what it needs; say why that cannot be done, or None."""
        try:
            for name in self.needs:
                importlib.import_module(name)
        except ImportError as error:
            return f"{error}; {self.remedy}" if self.remedy else str(error)
        return None
