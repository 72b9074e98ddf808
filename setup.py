"""Build of the extension modules. Everything else about the package is in pyproject.toml.

SLIPRING_BUILD chooses the kind of build: ``release`` (default), ``debug`` (assertions on), ``asan`` (address
and undefined behaviour), ``tsan`` (threads) or ``fuzz`` (asan, and it tells which edges are taken). Each
kind keeps its own objects under ``build/<kind>``. ``steps`` builds only the module with the C ring, with
points where tests kill: see tests/steps.
"""

import glob
import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KIND = os.environ.get("SLIPRING_BUILD", "release")

FLAGS = {
    "release": ["-O3"],
    "debug": ["-O1", "-UNDEBUG", "-DSR_DEBUG=1", "-fno-omit-frame-pointer"],
    "asan": ["-O1", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"],
    "tsan": ["-O1", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=thread"],
    "steps": ["-O1", "-DSR_STEPS=1", "-Itests/steps"],
}
FLAGS["fuzz"] = [*FLAGS["asan"], "-fsanitize-coverage=trace-pc"]  # needs tests/fuzz/edges.c preloaded
if KIND not in FLAGS:
    sys.exit(f"SLIPRING_BUILD={KIND!r} is not a kind of build; choose one of {', '.join(FLAGS)}")

# name -> C sources besides the .pyx of that name. Add an extension by adding a line.
EXTENSIONS = {
    "_check": [],
    "_segment": sorted(glob.glob("csrc/*.c")),
    "_slices": [],
    "_slot": [],
    "_ring": [],
    "_empty": [],
    "_trees": [],
    "_codec": [],
    "_define": [],
    "_encode": [],
    "_stack": [],
    "_collate": [],
    "_as_torch": [],
    "_turn": [],
    "_under_way": [],
    "_iterator": [],
    "_marks": [],
    "_event": [],
    "_queue": [],
}

HEADERS = glob.glob("csrc/*.h")
if KIND == "steps":
    EXTENSIONS = {"_segment": [*EXTENSIONS["_segment"], "tests/steps/steps.c"]}
    HEADERS.append("tests/steps/steps.h")

CFLAGS = [
    "-std=gnu11",
    "-g",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-plt",  # fewer lines and pages of code per call: what runs once per batch finds them cold
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",  # CPython's calling conventions leave many unused
    "-Wno-missing-field-initializers",  # Cython's type tables stop at the last field in use
]


def extension(name, c_sources):
    """One extension module of the package, from its .pyx and `c_sources`."""
    sanitizers = [flag for flag in FLAGS[KIND] if flag.startswith("-fsanitize")]
    return Extension(
        f"slipring.{name}",
        sources=[f"pkg/slipring/{name}.pyx", *c_sources],
        include_dirs=["csrc"],
        depends=sorted(HEADERS),  # also of those that only cimport _ring
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
            ("NPY_TARGET_VERSION", "NPY_1_23_API_VERSION"),
        ],
        extra_compile_args=[*CFLAGS, *FLAGS[KIND]],
        extra_link_args=["-pthread", *sanitizers],
    )


class BuildExt(build_ext):
    """Translate with Cython only when something is compiled, so that `sdist` needs no compiler."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or 2

    def run(self):
        if sys.platform != "linux":
            sys.exit(
                f"slipring builds and runs on Linux only (pidfd, futex, fallocate); this is {sys.platform}"
            )
        import numpy
        from Cython.Build import cythonize

        translated = cythonize(
            self.extensions,
            build_dir=f"build/{KIND}/cython",
            include_path=["pkg"],
            force=self.force,
            compiler_directives={
                "language_level": 3,
                "binding": True,
                "boundscheck": KIND != "release",
                "wraparound": False,
                # Caches of trees and counters are shared by all threads and rely on the GIL: on a
                # free-threaded interpreter importing slipring turns it on until they do not, and tests
                # under such an interpreter show it.
                "freethreading_compatible": False,
            },
        )
        # In place, because setuptools has already put its own attributes on these objects.
        for ext, c_ext in zip(self.extensions, translated):
            ext.sources, ext.depends = c_ext.sources, c_ext.depends
            ext.include_dirs.append(numpy.get_include())
        super().run()

    def copy_extensions_to_source(self):
        # Without force only newer modules are copied, and after another kind of build none would be.
        self.force = True
        super().copy_extensions_to_source()


setup(
    ext_modules=[extension(name, c_sources) for name, c_sources in EXTENSIONS.items()],
    cmdclass={"build_ext": BuildExt},
    options={"build": {"build_base": f"build/{KIND}"}},
)
