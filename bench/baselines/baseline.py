"""The description of a baseline."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Baseline:
    """One baseline.

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
        Whether it runs only if ``--baselines`` names it.
    remedy
        The advice if it is missing.
    libraries_of
        A package whose bundled libraries it needs by their plain names.
    whole
        Its decoder is compared with whole images, because it draws its boxes itself.
    options
        Additional arguments of its functions: several rows use one module.
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
        """Import its modules; return why that is not possible, or None."""
        try:
            for name in self.needs:
                importlib.import_module(name)
        except (ImportError, OSError, RuntimeError) as error:  # the latter: compiled for another torch
            return f"{error}; {self.remedy}" if self.remedy else str(error)
        return None
