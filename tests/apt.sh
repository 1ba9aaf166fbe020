# Read by scripts that take packages from Debian's mirror by name, and unpack them: nothing is installed, what this machine has installed or knows of does not
# count, and no right is needed; a network, apt-get and dpkg-deb are. The scripts have set `place`, a folder for it, and have `fail` and `skip`.

# apt-get with lists of its own and Debian 12 as its only source.
apt() {
    local command=$1
    shift
    "$command" -qq -o Dir::Etc::SourceList="$place/apt/sources" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$place/apt/lists" \
        -o Dir::Cache="$place/apt/cache" -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 -o Acquire::Languages=none "$@"
}

# Lists of what there is, as it is now.
lists() {
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg mirror=http://deb.debian.org
    [ -e "$keys" ] || skip "$keys is missing (Debian: apt-get install debian-archive-keyring)"
    mkdir -p "$place/apt/lists/partial" "$place/apt/cache/archives/partial"
    printf 'deb [signed-by=%s] %s %s main\n' "$keys" $mirror/debian bookworm "$keys" $mirror/debian-security bookworm-security >"$place/apt/sources"
    apt apt-get update
}

# fetch TO PACKAGES...: unpacks packages.
fetch() {
    local to=$1 load=$place/load package
    shift
    rm -rf "$load" && mkdir -p "$load" "$to"
    (cd "$load" && apt apt-get download "$@") || fail "Debian's mirror does not give $*"
    for package in "$load"/*.deb; do
        dpkg-deb -x "$package" "$to"
    done
    rm -r "$load"
}
