"""Build wheels for every CPython and processor, and check them: `make wheels check-wheel`, `make release`.

    python -m tools.wheels build [x86_64 | aarch64]
    python -m tools.wheels check [x86_64 | aarch64]
    python -m tools.wheels test x86_64 | aarch64 [arguments of pytest]
    python -m tools.wheels release

It runs in an environment with requirements-wheel.txt. PYTHONS in the environment names interpreters; without it, those
on PATH, of pyenv and of manylinux images are used, and Debian's where these lack a version. All files are in
build/wheel and build/pythons, the wheels in dist/.
"""

import sys

from tools.wheels import build, check, release
from tools.wheels.pythons import MACHINES


def main(arguments):
    match arguments:
        case ["build", *machines] if set(machines) <= set(MACHINES):
            missing = build.build(machines or MACHINES)
            if missing:
                print("not built:", *missing, sep="\n  ")
        case ["check", *machines] if set(machines) <= set(MACHINES):
            check.check(machines or MACHINES)
        case ["test", machine, *more] if machine in MACHINES:
            check.test(machine, more)
        case ["release"]:
            release.release()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
