#!/bin/sh
# arm64.sh FOLDER - makes of FOLDER a virtual environment of an arm64 Python under an emulator, with slipring in it.
#
# For `make test-arm64-python`, on Debian. Nothing is installed: the arm64 packages of this Debian are unpacked in
# FOLDER/root, unless there is one already. PYTHON, of the same version as Debian's, runs pip and Cython; ARM64_CC
# compiles; QEMU is 8 or later.
set -eu
mkdir -p "$1"
here=$(cd "$1" && pwd)
PYTHON=${PYTHON:-python3} QEMU=$(command -v "${QEMU:-qemu-aarch64}") ARM64_CC=${ARM64_CC:-aarch64-linux-gnu-gcc}

# apt as if this were an arm64 machine with no package yet, all of it in FOLDER/apt.
apt() {
    apt-get -q -o Dir::State="$here/apt" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt" \
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Acquire::Languages=none \
        -o APT::Install-Recommends=false -o Debug::NoLocking=true "$@"
}
if [ ! -e "$here/root" ]; then
    mkdir -p "$here/apt/lists/partial" "$here/apt/archives/partial"
    : >"$here/apt/status"
    apt update
    apt install --yes --download-only python3 libpython3-dev
    rm -rf "$here/root.new"
    for package in "$here"/apt/archives/*.deb; do dpkg-deb --extract "$package" "$here/root.new"; done
    mv "$here/root.new" "$here/root"
fi
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
interpreter=$here/root/usr/bin/python$version
if [ ! -x "$interpreter" ]; then
    echo "there is no $interpreter: PYTHON must be of the same version as Debian's python3" >&2
    exit 1
fi
"$PYTHON" -m compileall -q "$here/root/usr/lib/python$version" # as the packages' scripts would

printf 'home = %s\nversion = %s\n' "$here/root/usr/bin" "$version" >"$here/pyvenv.cfg"
packages=$here/lib/python$version/site-packages
mkdir -p "$packages" "$here/bin"
# The name that it is started by (-0) is sys.executable: who starts another interpreter gets the emulator with it.
cat >"$here/bin/python" <<END
#!/bin/sh
exec '$QEMU' -L '$here/root' -0 '$here/bin/python' '$interpreter' "\$@"
END
chmod +x "$here/bin/python"

if [ ! -e "$packages/numpy" ]; then
    grep -E '^(hypothesis|numpy|pillow|prometheus-client|pyarrow|pytest[a-z-]*|rich|tqdm)==' requirements-core.txt |
        xargs -d '\n' "$PYTHON" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
            --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
            --platform manylinux2014_aarch64 --target "$packages"
fi

# The other processor's pyconfig.h comes before this one's.
mkdir -p "$here/include/aarch64-linux-gnu"
for folder in "" aarch64-linux-gnu/; do
    ln -sfn "$here/root/usr/include/${folder}python$version" "$here/include/${folder}python$version"
done
CC=$ARM64_CC LDSHARED="$ARM64_CC -shared" CFLAGS=-I$here/include/python$version C_INCLUDE_PATH=$here/include \
    _PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=.cpython-3${version#3.}-aarch64-linux-gnu.so \
    "$PYTHON" setup.py --quiet build --build-lib "$packages"
"$here/bin/python" -c 'import platform, slipring; print("slipring", slipring.__version__, "on", platform.machine())'
