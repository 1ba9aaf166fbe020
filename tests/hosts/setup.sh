# What jobs over hosts need: programs of Debian, MPICH with its program, stillwire. Sourced by tests/hosts/run and tests/recovery/run, which have set `script`,
# `bin` and sourced tests/mpi/common.sh. Sets `place` to the folder of programs, and `tools` to options for the rounds.

checked=$(python3 -B tests/hosts/test_lives.py 2>&1) || fail "$checked"
[ "$(id -u)" = 0 ] || skip "only root can make hosts with an sshd"
for tool in unshare nsenter setpriv ip; do
    command -v $tool >/dev/null || skip "no $tool (Debian: apt-get install util-linux iproute2)"
done
unshare --net --mount --pid --fork --mount-proc true 2>/dev/null || skip "no namespaces with networks here"
case $target/ in
    /tmp/* | /var/tmp/* | /run/*) skip "$target is in a folder of which every host has its own; set CARGO_TARGET_DIR" ;;
esac

# Programs of Debian: those of this machine, or unpacked ones.
place=$target/hosts
mkdir -p "$place/jobs"
folder=$place/debian
libraries=$folder/usr/lib/x86_64-linux-gnu:$folder/lib/x86_64-linux-gnu
program() {
    local name=$1 found
    if found=$(PATH=$PATH:/usr/sbin:/sbin command -v "$name"); then
        echo "$found"
    else
        echo "env LD_LIBRARY_PATH=$libraries $(ls "$folder/usr/bin/$name" "$folder/usr/sbin/$name" 2>/dev/null | head -n 1)"
    fi
}
if ! (PATH=$PATH:/usr/sbin:/sbin; command -v sshd && command -v nft && command -v ssh && command -v ssh-keygen) >/dev/null && [ ! -e "$folder/ready" ]; then
    . /etc/os-release
    [ "${ID:-}-${VERSION_ID:-}-$(uname -m)" = debian-12-x86_64 ] || skip "openssh-server or nftables is not installed, and this is not Debian 12 on x86-64"
    . tests/apt.sh
    rm -rf "$folder"
    lists || skip "no sshd or nft here, and no package lists from Debian's mirror: install openssh-server and nftables"
    fetch "$folder" openssh-server openssh-client libwrap0 nftables libnftables1 libnftnl11 libmnl0 libxtables12 libjansson4 libedit2 libbsd0 libmd0
    touch "$folder/ready"
fi

place=$target/mpi
mpich
compile mpich steps tests/hosts/steps.c
if [ -z "$bin" ]; then
    build
    bin=$target/release
fi
[ -x "$bin/stillwire" ] && [ -e "$bin/libstillwire_fi.so" ] || fail "$bin has no stillwire and libstillwire_fi.so"
tools=(--place "$target/hosts/jobs" --stillwire "$bin/stillwire" --provider "$bin/libstillwire_fi.so" --program "$place/steps-mpich"
    --ssh "$(program ssh)" --keygen "$(program ssh-keygen)" --sshd "$(program sshd)" --nft "$(program nft)")
