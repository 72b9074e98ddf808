"""Install each wheel where there is no compiler, and let it work; the arm64 wheels under an emulator."""

import json
import os
import platform
import re
import shutil
import sys
import zipfile

from tools.wheels import build, pythons
from tools.wheels.pythons import ROOT, WORK, run

# Tests of the parts that differ between processors: memory orders, copies, and the kernels of images.
TESTS = tuple(f"tests/{folder}" for folder in ("ring", "codec", "collate", "images"))
TEST_PACKAGES = [
    "hypothesis",
    "prometheus-client",
    "pyarrow",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "rich",
    "tqdm",
]

# The README's first program needs torch, which is large: README names its version. Otherwise the quickstart's first
# program runs.
README = os.environ.get("README")
PACKAGES = ["pillow", "pyarrow", f"torch=={README}"] if README else ["pillow"]
PHOTOGRAPHS = """
import os
from PIL import Image
for n in range(64):
    folder = os.path.join("photos", ("cat", "dog")[n % 2])
    os.makedirs(folder, exist_ok=True)
    Image.new("RGB", (80, 60), (n, 0, 0)).save(os.path.join(folder, f"{n}.jpg"))
"""


def check(machines):
    """Check the tag and the metadata of each wheel in dist/, and each wheel that can run here at work."""
    wheels = sorted(wheel for machine in machines for wheel in build.DIST.glob(f"slipring-*{machine}.whl"))
    if not wheels:
        sys.exit("dist/ has no wheels: run `make wheels` first")
    run(sys.executable, "-m", "twine", "check", "--strict", *wheels, *build.DIST.glob("slipring-*.tar.gz"))
    ran, left = [], []
    found = {machine: pythons.find(machine)[0] for machine in machines}
    tested = {machine: min(minors, default=None) for machine, minors in found.items()}
    for wheel in wheels:
        version, tag, platforms = wheel.stem.split("-")[1:3] + wheel.stem.split("-")[4:]
        check_tag(wheel, platforms)
        check_sbom(wheel)
        minor = int(tag.removeprefix("cp3"))
        machine = next(machine for machine in machines if platforms.endswith(machine))
        python = found[machine].get(minor)
        if python is None:
            left.append(f"{wheel.name}: there is no CPython 3.{minor} for {machine} here")
            continue
        check_installed(wheel, version, python)
        if machine != platform.machine() and minor == tested[machine]:
            check_tests(python)
        ran.append(f"3.{minor} on {machine}")
    print(f"seen to work: {', '.join(ran)}")
    if left:
        print("only the tag and the SBOM were checked, because it cannot run:", *left, sep="\n  ")
    if not ran:
        sys.exit("no wheel of dist/ is for a Python of this machine: run `make wheels` first")


def check_tag(wheel, platforms):
    """Ask auditwheel for the oldest system that the wheel's symbols allow, and compare with its name."""
    told = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel, quiet=True))
    if told["overall_tag"] not in platforms.split(".") or told["external_libs"]:
        sys.exit(f"{wheel.name}: auditwheel says otherwise:\n{json.dumps(told, indent=1)}")


def check_sbom(wheel):
    """Check that the wheel carries its bill of materials."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/sboms/.*\.cdx\.json", name)]
        described = json.loads(archive.read(name))["metadata"]["component"]
    if f"slipring-{described['version']}-" not in wheel.name:
        sys.exit(f"{wheel.name}: its SBOM is about version {described['version']}")


def environment_of(python):
    return WORK / "check" / f"{python.machine}-3.{python.minor}"


def check_installed(wheel, version, python):
    """Install a wheel without a compiler on PATH, and test it outside of the sources."""
    directory = environment_of(python)
    shutil.rmtree(directory, ignore_errors=True)
    bare = {"CC": "/bin/false", "PATH": str(directory / "bin"), "PYTHONPATH": ""}
    inside = python.environment(directory, wheel, *PACKAGES, env=bare)
    told = json.loads(run(inside, "-m", "slipring", "--json", env=bare, cwd=directory, quiet=True))
    if told["slipring"] != version or not told["folder"].startswith(str(directory)):
        sys.exit(f"{wheel.name}: another slipring was imported: {told['slipring']} in {told['folder']}")
    run(inside, shutil.copy(ROOT / "tools" / "smoke.py", directory / "smoke.py"), env=bare, cwd=directory)
    page = "README.md" if README else "docs/quickstart.md"
    script = directory / "program.py"
    script.write_text(re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)[1])
    run(inside, "-c", PHOTOGRAPHS, env=bare, cwd=directory)
    print(f"{page}: {run(inside, script, env=bare, cwd=directory, quiet=True).strip()}")
    print(f"{wheel.name}: {build.size(wheel)}; {told['check']['sentence']}", flush=True)


def check_tests(python, arguments=TESTS):
    """Run tests of the repository with the installed wheel."""
    inside = python.environment(environment_of(python), *TEST_PACKAGES)
    options = ("-q", "-n", os.cpu_count(), "--timeout", 3600, "-p", "no:cacheprovider", "-m", "not slow and not alone")
    run(inside, "-m", "pytest", *options, *arguments)


def test(machine, arguments):
    """Install the wheel of `machine` for the first Python at hand, and run tests with it."""
    found, missing = pythons.find(machine)
    if not found:
        sys.exit("\n".join(missing))
    python = next(iter(found.values()))
    (wheel,) = build.DIST.glob(f"slipring-*-cp3{python.minor}-cp3{python.minor}-*{machine}.whl")
    check_installed(wheel, wheel.stem.split("-")[1], python)
    check_tests(python, arguments or TESTS)
