# Two hosts that are network, process and mount namespaces of one user namespace, with the caller's namespace as the router between them; no root is needed.
# Sourced by scripts that run something over both, after common.sh.

# enter_namespaces ARGUMENT...: starts the script again, as `SCRIPT inside ARGUMENT...`, in namespaces of its own.
enter_namespaces() {
    local tool why
    for tool in unshare nsenter setpriv ip; do
        command -v $tool >/dev/null || skip "no $tool (Debian: apt-get install util-linux iproute2)"
    done
    why=$(unshare --user --map-root-user --net --pid --fork --mount-proc ip link add a0 type veth peer name b0 2>&1) ||
        skip "no namespaces with networks for this user: ${why:-unshare failed}"
    # Without a fork: what ends the script reaches it, and not somebody who waits for it and takes no gentle signal.
    exec unshare --user --map-root-user --net "$0" inside "$@"
}

# enter_networks ARGUMENT...: likewise for root, whose rights stay those of the system.
enter_networks() {
    local tool
    for tool in unshare nsenter ip; do
        command -v $tool >/dev/null || skip "no $tool (Debian: apt-get install util-linux iproute2)"
    done
    unshare --net --pid --fork --mount-proc true 2>/dev/null || skip "no namespaces with networks here"
    exec unshare --net --mount "$0" inside "$@"
}

# two_hosts: makes them, with the addresses 10.77.1.1 and 10.77.2.1; this one is 10.77.N.254 to host N. Sets `work` to a folder that goes with the script, with a
# program `enter` in it that runs a command on a host: options, the address, the command in words for a shell, as ssh takes them. `hosts` holds what ends them.
two_hosts() {
    local host i in_host
    declare -gA pid
    hosts=()
    for host in 1 2; do
        unshare --net --uts --pid --fork --mount-proc --kill-child sh -c "hostname host$host; exec sleep 3600" </dev/null >/dev/null 2>&1 &
        hosts+=($!)
        disown
        for ((i = 0; i < 100; i++)); do
            pid[$host]=$(cat "/proc/${hosts[-1]}/task/${hosts[-1]}/children" 2>/dev/null) || true
            pid[$host]=${pid[$host]// /}
            [ -z "${pid[$host]}" ] || break
            sleep 0.05
        done
        ip link add "to$host" type veth peer name eth0 netns "${pid[$host]}"
        ip address add "10.77.$host.254/24" dev "to$host"
        ip link set "to$host" up
        in_host=(nsenter -t "${pid[$host]}" -n)
        "${in_host[@]}" ip address add "10.77.$host.1/24" dev eth0
        "${in_host[@]}" ip link set eth0 up
        "${in_host[@]}" ip link set lo up
        "${in_host[@]}" ip route add default via "10.77.$host.254"
    done
    ip link set lo up
    echo 1 >/proc/sys/net/ipv4/ip_forward

    work=$(mktemp -d "$place/hosts.XXXXXX")
    # Each host has temporary files of its own: daemons of Open MPI's launcher name theirs by their process's number, which may be the same on both hosts.
    mkdir "$work/tmp.1" "$work/tmp.2"
    cat >"$work/enter" <<END
#!/bin/sh
while [ "\${1#10.77.}" = "\$1" ]; do shift; done
case \$1 in 10.77.1.1) pid=${pid[1]} TMPDIR=$work/tmp.1 ;; *) pid=${pid[2]} TMPDIR=$work/tmp.2 ;; esac
export TMPDIR
shift
exec nsenter -t \$pid -n -u -p -m --wd="$PWD" sh -c "\$*"
END
    chmod +x "$work/enter"
    # `unshare --fork` takes no gentler signal, and takes its host with it.
    trap 'kill -KILL "${hosts[@]}" 2>/dev/null; rm -rf "$work" || true' EXIT
}

# Ends what is left of a job on both hosts.
empty_hosts() {
    local host
    for host in 1 2; do
        nsenter -t "${pid[$host]}" -n -p -m sh -c 'kill -KILL -1' || true
    done
}
