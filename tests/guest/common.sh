# Read by the scripts of this folder: a guest under QEMU with Debian's kernel, which sees this machine's files.
# QEMU, kernel and busybox come from Debian's mirror by name, are unpacked in target/guest (90 MB to load) and not installed. That needs
# apt-get and dpkg-deb, and no right; QEMU is fetched only where there is no qemu-system-x86_64.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

script=tests/guest/$(basename "$0")
target=${CARGO_TARGET_DIR:-target}
target=$(mkdir -p "$target" && cd "$target" && pwd)
place=$target/guest
# GUEST: the name of one of several guests at once, whose files are its own. Only one at a time is prepared.
own=$place${GUEST:+/$GUEST}
# What is written by both, at the same path in the guest; and the guest's own disk, whose folder is empty outside.
share=$own/share
disk=$own/disk
mkdir -p "$share" "$disk"
exec {lock}>"$place/lock"
flock "$lock"

# Nothing that guests share is written any more.
prepared() {
    flock --unlock "$lock"
}

fail() {
    echo "$script: $*" >&2
    exit 1
}

# Reports what this machine lacks (tests/apt.sh calls it, too) and fails: a guest that did not run must not pass for one that passed.
skip() {
    fail "$*; to do without the guest: ./check --without-guest"
}

. tests/apt.sh

# test_executables PACKAGE...: the path of each package's integration tests, a line each. They are built with the features of the whole workspace, as ./check
# has built them already.
test_executables() {
    cargo test --locked --workspace --test it --test files --no-run --message-format json 2>"$place/cargo.log" >"$place/cargo.json" ||
        { cat "$place/cargo.log" >&2; fail "the tests cannot be built"; }
    python3 - "$place/cargo.json" "$@" <<'END'
import json, sys
built = {}
for line in open(sys.argv[1]):
    artifact = json.loads(line)
    if artifact.get("executable") and artifact["target"]["name"] in ("it", "files"):
        package = artifact["manifest_path"].split("/")[-2]
        built[package if artifact["target"]["name"] == "it" else "files"] = artifact["executable"]
missing = [package for package in sys.argv[2:] if package not in built]
if missing:
    sys.exit(f"no integration tests of {', '.join(missing)} among those of {', '.join(sorted(built))}")
print("\n".join(built[package] for package in sys.argv[2:]))
END
}

# Names of the packages that installing these would bring.
closure() {
    apt apt-get install --no-install-recommends --print-uris "$@" | sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p"
}

# parts SERIES: makes sure of QEMU, busybox, and a kernel (6.1, or 6.12 as Debian gives it to the same release). Sets `kernel` to its folder and
# `version` to its full name.
parts() {
    local series=$1 name tool
    [ "$(uname -m)" = x86_64 ] || skip "the guest is an x86-64 one, and nothing else would run its programs here"
    for tool in apt-get apt-cache dpkg-deb mkfs.ext4; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || skip "$tool is missing (Debian: apt-get install apt dpkg e2fsprogs)"
    done
    kernel=$place/linux-$series
    if [ ! -e "$place/busybox/ready" ] || [ ! -e "$kernel/ready" ] || { [ ! -e "$place/qemu/ready" ] && ! command -v qemu-system-x86_64 >/dev/null; }; then
        lists || fail "no package lists from Debian's mirror; without a network: ./check --without-guest"
    fi
    if [ ! -e "$place/busybox/ready" ]; then
        fetch "$place/busybox" busybox-static
        touch "$place/busybox/ready"
    fi
    busybox=$place/busybox/bin/busybox
    if [ ! -e "$kernel/ready" ]; then
        name=linux-image-amd64
        [ "$series" = 6.1 ] || name=linux-image-$series-amd64
        name=$(apt apt-cache depends "$name" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
        [ -n "$name" ] || fail "Debian's mirror names no kernel of series $series"
        rm -rf "$kernel"
        fetch "$kernel" "$name"
        xz_modules "$kernel"
        "$busybox" depmod -b "$kernel" "$(ls "$kernel/lib/modules")"
        touch "$kernel/ready"
    fi
    version=$(ls "$kernel/lib/modules")
    if command -v qemu-system-x86_64 >/dev/null; then
        qemu=(qemu-system-x86_64)
    else
        grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || skip "qemu-system-x86_64 is missing (apt-get install qemu-system-x86)"
        if [ ! -e "$place/qemu/ready" ]; then
            # shellcheck disable=SC2046 # names, one a word
            fetch "$place/qemu" $(closure qemu-system-x86 seabios)
            touch "$place/qemu/ready"
        fi
        local root=$place/qemu
        qemu=(env LD_LIBRARY_PATH="$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu" "$root/usr/bin/qemu-system-x86_64"
            -L "$root/usr/share/qemu" -L "$root/usr/share/seabios")
    fi
}

# Newer kernels' modules are compressed; what is small enough to load them does not unpack.
xz_modules() {
    find "$1/lib/modules" -name '*.ko.xz' -exec xz -d {} +
}

# Files of modules, each after those that it needs.
modules() {
    awk -v wanted="$*" '
        { file = $1; sub(/:$/, "", file); needs[file] = $0; name = file; sub(/.*\//, "", name); sub(/\.ko$/, "", name); files[name] = file }
        function add(file, parts, at) {
            if (file in done) return
            done[file] = 1
            for (at = split(needs[file], parts, " "); at > 1; at--) add(parts[at])
            print file
        }
        END {
            for (at = split(wanted, names, " "); at > 0; at--) order[at] = names[at]
            for (at = 1; at in order; at++) if (order[at] in files) add(files[order[at]])
        }' "$kernel/lib/modules/$version/modules.dep"
}

# boot SECONDS CPU LOG SCRIPT [ARGUMENTS...]: runs a script of this tree in the guest and returns its exit code; what it prints goes to LOG.
# The guest sees this machine's files, read-only, at their paths; besides `share` and `disk` (TMPDIR), a file system of its own, each time new.
# EXTRA_MODULES are loaded, too. Nothing outside the guest is written. The disk is an NVMe one because a file is known by its device's number and its own,
# and a first virtio disk has the same number in most virtual machines.
boot() {
    local seconds=$1 cpu=$2 log=$3 root=$own/initramfs file code=0
    shift 3
    rm -rf "$root" "$own/disk.img"
    mkdir -p "$root/bin"
    cp "$busybox" "$root/bin"
    # shellcheck disable=SC2086 # names, one a word
    modules virtio_pci nvme 9pnet_virtio 9p crc32c_generic ext4 unix_diag ${EXTRA_MODULES:-} >"$root/modules"
    while read -r file; do
        mkdir -p "$root/$(dirname "$file")"
        cp "$kernel/lib/modules/$version/$file" "$root/$file"
    done <"$root/modules"
    {
        printf '#!/bin/busybox sh\nexport PATH=/bin\n/bin/busybox --install -s /bin\nshare=%q disk=%q\n' "$share" "$disk"
        sed 's/^        //' <<'INIT'
        mkdir -p /proc /sys /dev /root
        mount -t proc proc /proc
        mount -t devtmpfs dev /dev
        while read -r module; do insmod "/$module" || echo "guest: $module was not loaded"; done </modules
        mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /root
        mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share "/root$share"
        for try in 1 2 3 4 5 6 7 8 9 10; do [ -e /dev/nvme0n1 ] && break; sleep 0.3; done
        mount -t ext4 /dev/nvme0n1 "/root$disk"
        for kind in proc sysfs devtmpfs; do
            case $kind in proc) to=proc ;; sysfs) to=sys ;; devtmpfs) to=dev ;; esac
            mount -t $kind $kind /root/$to
        done
        exec switch_root /root "$share/start"
INIT
    } >"$root/init"
    chmod +x "$root/init"
    {
        printf '#!/bin/bash\nexport PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root XDG_RUNTIME_DIR=/run TMPDIR=%q\n' "$disk"
        printf 'busybox=%q\ncd %q\n' "$busybox" "$PWD"
        sed 's/^        //' <<'START'
        chmod 1777 "$TMPDIR"
        mkdir /dev/shm /dev/pts
        mount -t tmpfs shm /dev/shm
        mount -t devpts pts /dev/pts
        mount -t tmpfs run /run
        mount -t cgroup2 groups /sys/fs/cgroup
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control
        "$busybox" ip link set lo up
START
        printf '%q ' "$@"
        # The guest's end: QEMU ends with twice this and one more.
        # shellcheck disable=SC2016 # expanded in the guest
        printf '\ncode=$?\nsync\nprintf "\\\\x$(printf %%x $code)" | dd of=/dev/port bs=1 seek=1281 2>/dev/null\n'
    } >"$share/start"
    chmod +x "$share/start"
    (cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$own/initramfs.gz"
    rm -r "$root"
    truncate -s 4G "$own/disk.img"
    PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F "$own/disk.img"
    echo "-- a guest with Linux $version and the processor $cpu; its console is $log"
    timeout --kill-after=10 "$seconds" "${qemu[@]}" -M pc -accel tcg,thread=multi -cpu "$cpu" -smp 2 -m 2048 -nodefaults -no-user-config -display none \
        -no-reboot -kernel "$kernel/boot/vmlinuz-$version" -initrd "$own/initramfs.gz" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable rdinit=/init" -serial stdio \
        -device isa-debug-exit,iobase=0x501,iosize=1 \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=host,mount_tag=host \
        -fsdev local,id=share,path="$share",security_model=none -device virtio-9p-pci,fsdev=share,mount_tag=share \
        -drive file="$own/disk.img",if=none,id=disk,format=raw,cache=unsafe -device nvme,drive=disk,serial=disk </dev/null >"$log" 2>"$log.qemu" || code=$?
    rm -f "$own/disk.img" "$own/initramfs.gz"
    case $code in
        124 | 137) echo "$script: the guest has not ended within $seconds s" >&2; return 124 ;;
        0 | *[02468]) cat "$log.qemu" >&2; echo "$script: the guest ended without a result (QEMU's exit code $code)" >&2; return 125 ;;
    esac
    return $((code / 2))
}
