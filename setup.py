"""Build of the extension modules. Everything else about the package is in pyproject.toml.

SLIPRING_BUILD chooses the kind of build: ``release`` (default), ``debug`` (assertions on), ``asan`` (address
and undefined behaviour), ``tsan`` (threads), ``fuzz`` (asan, and it tells which edges are taken; only the fuzzed
modules), ``coverage`` (gcov counts the lines of csrc) or ``mutants`` (compiles fast: tests/mutants builds some modules
dozens of times). Each kind keeps its own objects under ``build/<kind>``. ``steps`` builds only the module with the C
ring, with points where tests kill: see tests/steps.
"""

import concurrent.futures
import glob
import multiprocessing
import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KIND = os.environ.get("SLIPRING_BUILD", "release")

FLAGS = {
    "release": ["-O3"],
    "debug": ["-O1", "-UNDEBUG", "-DSR_DEBUG=1", "-fno-omit-frame-pointer"],
    "asan": ["-O1", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"],
    "tsan": ["-O1", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=thread"],
    "mutants": ["-O0", "-g0"],
    "coverage": ["-O1", "--coverage", "-fprofile-filter-files=csrc/"],
    # Tests call the C functions; records are added up more often.
    "steps": ["-O1", "-DSR_STEPS=1", "-DSR_FOLD=4u", "-Itests/steps", "-fvisibility=default"],
}
FLAGS["fuzz"] = [*FLAGS["asan"], "-g1", "-fsanitize-coverage=trace-pc"]  # needs tests/fuzz/edges.c preloaded
if KIND not in FLAGS:
    sys.exit(f"SLIPRING_BUILD={KIND!r} is not a kind of build; choose one of {', '.join(FLAGS)}")

# Add an extension by adding a line; if it calls csrc, add it to CALL_C too. It links the members of the C library that
# it calls.
EXTENSIONS = [
    "_core.ring._check",
    "_core.ring._order",
    "_core.ring._segment",
    "_core.ring._fd",
    "_core.ring._slot",
    "_core.ring._watch",
    "_core.ring._ring",
    "_core.codec._codec",
    "_core.codec._encode",
    "_core.codec._collate",
    "_core.codec._rows",
    "_core.codec._shared",
    "_core.workers._rng_guard",
    "_core.passes._turnstile",
    "_core.passes._plan",
    "_core.passes._inflight",
    "_core.passes._pass",
    "_core.passes._iteration",
    "_core.passes._local",
    "_core.passes._sharing",
    "_core.passes._device",
    "_core.passes._rebatch",
    "_core.passes._queue",
    "_core.passes._broadcast",
    "_core.codec._cache",
    "images._decode",
    "tokens._documents",
    "tokens._pack",
]
CALL_C = {"_core.ring._segment", "_core.ring._order", "_core.ring._watch", "_core.codec._cache", "images._decode"}
# Other modules need no instrumentation.
FUZZED = {"_core.ring._segment", "_core.ring._slot", "_core.ring._ring", "_core.codec._codec", "images._decode"}
C_SOURCES = sorted(glob.glob("csrc/**/*.c", recursive=True))
C_HEADERS = sorted(glob.glob("csrc/**/*.h", recursive=True))
INCLUDES = ["csrc", "csrc/images"]
if KIND == "steps":
    EXTENSIONS = ["_core.ring._segment"]
    C_HEADERS.append("tests/steps/steps.h")

CFLAGS = [
    "-std=gnu11",
    "-g",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # the same numbers on every processor
    "-fno-plt",  # fewer lines and pages of code per call: what runs once per batch finds them cold
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",  # CPython's calling conventions leave many unused
    "-Wno-missing-field-initializers",  # Cython's type tables stop at the last field in use
]


def c_library():
    """All of csrc, compiled once."""
    return "slipring_c", {
        "sources": C_SOURCES,
        "obj_deps": {"": C_HEADERS},
        "include_dirs": INCLUDES,
        "cflags": [*CFLAGS, *FLAGS[KIND]],
    }


def extension(name):
    """One extension module of the package, from its .pyx."""
    # Tests of "steps" call any function of the C ring in its one module.
    c_sources = [*sorted(glob.glob("csrc/*.c")), "tests/steps/steps.c"] if KIND == "steps" else []
    if KIND == "coverage" and name in CALL_C:
        c_sources = ["tools/line_coverage/counters.c"]
    flags = FLAGS["mutants"] if KIND == "fuzz" and name not in FUZZED else FLAGS[KIND]
    linked = [flag for flag in flags if flag.startswith(("-fsanitize", "--coverage"))]
    told = [("SR_BUILD", f'"{KIND}"')] if name == "_core.ring._segment" else []  # by `python -m slipring`
    return Extension(
        f"slipring.{name}",
        sources=[f"pkg/slipring/{name.replace('.', '/')}.pyx", *c_sources],
        include_dirs=INCLUDES.copy(),
        depends=[*C_HEADERS, *(C_SOURCES if name in CALL_C else [])],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
            ("NPY_TARGET_VERSION", "NPY_1_23_API_VERSION"),
            *told,
        ],
        extra_compile_args=[*CFLAGS, *flags],
        extra_link_args=["-pthread", *linked],
    )


def no_compiler(why):
    """End the build with what is missing and the remedy: this is for users whom no wheel fits."""
    sys.exit(
        f"slipring has no wheel for this Python ({sys.implementation.cache_tag} on {os.uname().machine}), and to "
        f"build it {why}: install gcc and this Python's headers (Debian: `apt install gcc python3-dev`, Fedora: "
        "`dnf install gcc python3-devel`), or use a Python that there is a wheel for"
    )


def check_compiler():
    """Look for what compiling takes before Cython has worked for a minute."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "gcc")[0]
    if shutil.which(command) is None:
        no_compiler(f"a C compiler is needed, but there is no {command!r}")
    include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(include, "Python.h")):
        no_compiler(f"its headers are needed, but there is no Python.h in {include}")


class BuildClib(build_clib):
    """Compile the files of the C library concurrently: setuptools compiles one after another."""

    def build_libraries(self, libraries):
        compile_in_order = self.compiler.compile

        def compile_concurrently(sources, **options):
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                return [
                    made
                    for objects in pool.map(lambda source: compile_in_order([source], **options), sources)
                    for made in objects
                ]

        self.compiler.compile = compile_concurrently
        super().build_libraries(libraries)


class BuildExt(build_ext):
    """Translate with Cython only when something is compiled, so that `sdist` needs no compiler."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or 2

    def run(self):
        check_compiler()
        import numpy

        unfuzzed = [ext for ext in self.extensions if ext.name.removeprefix("slipring.") not in FUZZED]
        # Modules with the directives of the release share its translations.
        released = {"mutants": self.extensions, "fuzz": unfuzzed}.get(KIND, [])
        self.translate(released, "release")
        self.translate([ext for ext in self.extensions if ext not in released], KIND)
        for ext in self.extensions:
            ext.include_dirs.append(numpy.get_include())
        super().run()

    def translate(self, extensions, kind):
        """Translate modules with the directives of a kind of build, which keeps its translations."""
        from Cython.Build import cythonize

        translated = cythonize(
            extensions,
            # Its processes would run this file again if they were not forked.
            nthreads=os.cpu_count() if multiprocessing.get_start_method() == "fork" else 0,
            build_dir=f"build/{kind}/cython",
            include_path=["pkg"],
            force=self.force,
            compiler_directives={
                "language_level": 3,
                "binding": True,
                "boundscheck": kind != "release",
                "wraparound": False,
                "freethreading_compatible": True,
            },
        )
        # In place, because setuptools has already put its own attributes on these objects.
        for ext, c_ext in zip(extensions, translated):
            ext.sources, ext.depends = c_ext.sources, c_ext.depends

    def build_extensions(self):
        try:
            if self.distribution.has_c_libraries():
                self.run_command("build_clib")
            super().build_extensions()
        except CompileError:
            if self.compiler_works():
                raise  # the fault is in the code
            no_compiler(f"a C compiler that works is needed, but {self.compiler.compiler_so[0]!r} fails")

    def compiler_works(self):
        """Whether it can compile a file of two lines with the C library's and Python's headers."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "works.c")
            source.write_text("#include <Python.h>\n#include <stdlib.h>\n")
            try:
                self.compiler.compile([str(source)], folder, include_dirs=[sysconfig.get_path("include")])
            except CompileError:
                return False
            return True

    def copy_extensions_to_source(self):
        # Without force only newer modules are copied, and after another kind of build none would be.
        self.force = True
        super().copy_extensions_to_source()


def package_page():
    """The README as an index shows it: away from the repository its relative links would lead nowhere.

    With a `Repository` among pyproject's URLs they lead there, else they are plain text that names the file.
    """
    found = re.search(r'^Repository = "(.*?)/?"', Path("pyproject.toml").read_text(), re.M)

    def link(match):
        picture, text, target = match.groups()
        if found:
            return f"{picture}[{text}]({found[1]}/{'raw' if picture else 'blob'}/HEAD/{target})"
        return "" if picture else f"{text} (`{target.partition('#')[0]}`)"

    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)]+)\)", link, Path("README.md").read_text())


# Elsewhere only the Python modules are installed: with SLIPRING_FALLBACK=1, they pass loaders to torch's.
COMPILED = EXTENSIONS if sys.platform == "linux" else []

setup(
    long_description=package_page(),
    long_description_content_type="text/markdown",
    libraries=[c_library()] if COMPILED and KIND != "steps" else [],
    ext_modules=[extension(name) for name in COMPILED],
    cmdclass={"build_clib": BuildClib, "build_ext": BuildExt},
    options={"build": {"build_base": f"build/{KIND}"}},
)
