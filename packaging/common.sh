# Read by the scripts of this folder, from the project's root: where packages are built, and the tools for it, from PyPI and crates.io.

script=${0#"$PWD"/}
target=${CARGO_TARGET_DIR:-target}
target=$(mkdir -p "$target" && cd "$target" && pwd)
packages=$target/packages
mkdir -p "$packages"

fail() {
    echo "$script: $*" >&2
    exit 1
}

# The version of all crates.
version() {
    sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1
}

# The folder of a cargo profile below target.
folder() {
    if [ "$1" = dev ]; then echo debug; else echo "$1"; fi
}

# tools WORDS...: packages of PyPI in an environment of their own, whose programs come first on the PATH.
tools() {
    local venv=$packages/tools wanted="$*"
    if [ "$(cat "$venv/ready" 2>/dev/null)" != "$wanted" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv" || fail "no python3 with venv (Debian: apt-get install python3-venv)"
        "$venv/bin/pip" install --quiet "$@" >&2 || fail "PyPI does not give $wanted: packages are built where there is a network"
        echo "$wanted" >"$venv/ready"
    fi
    PATH=$venv/bin:$PATH
}
