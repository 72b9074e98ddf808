#!/bin/sh
# debian_python.sh FOLDER MACHINE VERSION - unpack Debian's CPython VERSION for MACHINE, x86_64 or aarch64, in FOLDER.
#
# FOLDER/bin/python starts it. Nothing is installed: the packages are unpacked in FOLDER/root. They come from this
# machine's release of Debian or, if that does not have VERSION, from SUITE (default: sid).
#
# Debian has no free-threaded Python: VERSION 3.14t is compiled from the source package of 3.14 instead, on MACHINE
# itself, without profile-guided optimization. This takes minutes.
#
# On this machine's own processor, patchelf lets the interpreter load the libraries of its root, because they may be
# newer than this machine's. For another processor, FOLDER/bin/python starts an emulator, QEMU. Emulators before qemu 8
# keep a record of every page of the addresses that a segment reserves, gigabytes of them: SUITE's replaces an older one.
set -eu
mkdir -p "$1"
here=$(cd "$1" && pwd) machine=$2 version=$3 SUITE=${SUITE:-sid}
fetched=$here/apt sources=

fail() {
    echo "there is no CPython $version for $machine here: $1" >&2
    exit 1
}
for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null || fail "there is no $tool to unpack Debian's with"
done

# apt as if this were a machine of architecture $arch with no package yet, all of it in $fetched.
apt() {
    apt-get -q -o Dir::State="$fetched" -o Dir::State::status="$fetched/status" -o Dir::Cache="$fetched" \
        -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Acquire::Languages=none \
        -o APT::Install-Recommends=false -o Debug::NoLocking=true $sources "$@" >>"$fetched/log" 2>&1
}

# download ARCHITECTURE PACKAGE... - packages of this machine's release, with all that they depend on.
download() {
    arch=$1
    shift
    rm -rf "$fetched/lists" "$fetched/archives"
    mkdir -p "$fetched/lists/partial" "$fetched/archives/partial"
    : >"$fetched/status"
    apt update && apt install --yes --download-only "$@"
}

# use_suite - choose SUITE, from where this machine gets its packages.
use_suite() {
    place=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/\?$') ||
        fail "apt gets packages of no Debian (if it should: run apt-get update)"
    keys=$(ls /usr/share/keyrings/debian-archive-keyring.[gp]* | head -n 1)
    mkdir -p "$fetched"
    printf "%s [signed-by=$keys] $place $SUITE main\n" deb deb-src >"$fetched/suite.list"
    sources="-o Dir::Etc::sourcelist=$fetched/suite.list -o Dir::Etc::sourceparts=/dev/null"
}

# download_of_suite ARCHITECTURE PACKAGE... - the same as `download` of SUITE.
download_of_suite() {
    use_suite
    download "$@"
}

# compile - the free-threaded build of VERSION from SUITE's source package.
compile() {
    source=python${version%t}
    use_suite
    mkdir -p "$fetched/lists/partial" "$fetched/source" "$here/build"
    : >"$fetched/status"
    arch=$(dpkg --print-architecture)
    apt update
    (cd "$fetched/source" && apt source --download-only "$source") ||
        fail "$SUITE has no source package $source (apt's answers: $fetched/log)"
    tar -xf "$fetched/source"/*.orig.tar.* -C "$here/build" --strip-components 1
    (cd "$here/build" && ./configure -q --disable-gil --disable-test-modules --prefix="$here/root" OPT='-DNDEBUG -O3' &&
        make -s -j2 && make -s install) >"$here/log" 2>&1 || fail "it cannot be compiled: see $here/log"
    ln -s "root/bin/python$version" "$here/bin/python"
    rm -rf "$fetched" "$here/build"
}

# unpack ROOT - what was downloaded.
unpack() {
    mkdir -p "$1"
    for folder in bin lib lib64 sbin; do mkdir -p "$1/usr/$folder" && ln -s usr/$folder "$1/$folder"; done
    for package in "$fetched"/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$1"
    done
    rm -rf "$fetched"
}

mkdir -p "$here/bin"
case $version in *t)
    [ -e "$here/bin/python" ] || compile
    exit
    ;;
esac
if [ ! -e "$here/root" ]; then
    case $machine in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) fail "only x86_64 and aarch64 are known" ;; esac
    packages="python$version python$version-venv libpython$version-dev libstdc++6" # the last for numpy
    download $arch $packages || download_of_suite $arch $packages ||
        fail "neither this release of Debian nor $SUITE has it (apt's answers: $fetched/log)"
    rm -rf "$here/root.new"
    unpack "$here/root.new"
    mv "$here/root.new" "$here/root"
fi
interpreter=$here/root/usr/bin/python$version

if [ "$machine" = "$(uname -m)" ]; then
    loader=$(patchelf --print-interpreter "$interpreter")
    wanted=$here/root${loader##*/root} # it may have been changed before, in another folder
    [ "$loader" = "$wanted" ] || patchelf --set-interpreter "$wanted" --force-rpath \
        --set-rpath "$here/root/usr/lib/$machine-linux-gnu" "$interpreter"
    # `-m venv` installs the pip of the root.
    sed -i "s|[^'\"=]*/usr/share/python-wheels|$here/root/usr/share/python-wheels|" \
        "$here/root/usr/lib/python$version"/_sysconfig*
    # Debian's names a file of the processor's own below /usr/include, where this root is not.
    cp "$here/root/usr/include/$machine-linux-gnu/python$version/pyconfig.h" "$here/root/usr/include/python$version/"
    ln -sfn "$interpreter" "$here/bin/python"
    exit
fi

QEMU=$(command -v "${QEMU:-qemu-$machine}" || true)
if [ -z "$QEMU" ] || ! "$QEMU" --version | awk 'NR == 1 { exit $3 + 0 < 8 }'; then
    QEMU=$(dirname "$here")/qemu-$machine
    if [ ! -x "$QEMU" ]; then
        download_of_suite "$(dpkg --print-architecture)" qemu-user || fail "$SUITE has no qemu-user to run it with"
        unpack "$here/qemu"
        mv "$here/qemu/usr/bin/qemu-$machine" "$QEMU" # it is linked statically
        rm -rf "$here/qemu"
    fi
fi
# -0 sets sys.executable, so programs that start another interpreter start the emulator with it.
printf "#!/bin/sh\nexec '%s' -L '%s' -0 \"\$0\" '%s' \"\$@\"\n" "$QEMU" "$here/root" "$interpreter" >"$here/bin/python"
chmod +x "$here/bin/python"
