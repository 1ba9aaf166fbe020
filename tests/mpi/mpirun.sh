# Open MPI's own launcher over the two hosts that namespaces.sh makes. Sourced after it. FI_PROVIDER, FI_PROVIDER_PATH and STILLWIRE_KEY_FILE are set
# (`stillwire env`), and what else there is of the -x below.

# What runs on the hosts, what each thread does and has waited for the processor, and what the network has dropped.
look_at_hosts() {
    local host process thread
    for host in 1 2; do
        echo "host $host"
        # shellcheck disable=SC2016 # expanded there
        nsenter -t "${pid[$host]}" -n -p -m sh -c '
            for process in $(pgrep -x ".*-openmpi|prted"); do
                echo "  process $process: $(tr "\0" " " </proc/$process/cmdline)"
                for thread in /proc/$process/task/*; do
                    echo "    $(cat $thread/comm): $(cut -d " " -f 3,14,15,39 $thread/stat); $(cat $thread/schedstat); $(cat $thread/wchan); $(cat $thread/syscall)"
                done
            done
            ip -s -o link show eth0; cat /proc/net/udp; grep ^Udp: /proc/net/snmp' 2>&1 || true
    done
}

# mpirun_on_hosts RANKS WORDS COMMAND...: as `expect`, with so many ranks on each host. The launcher now and then fails to start anything on a host, which says
# nothing about us, and is asked again then. A job that does not end is told with what its processes did after 80 s, and started again once.
mpirun_on_hosts() {
    local each=$1 words=$2 tries seen code hung=no looking mpirun
    shift 2
    # Its daemons stay in our session: the kernel shares processors out between sessions first (autogroup), and ranks of the one host have been seen to get two
    # percent of them beside those of the other.
    mpirun=("$place/openmpi/bin/mpirun" --allow-run-as-root --leave-session-attached --prtemca plm_ssh_agent "$work/enter" --mca pml cm --mca mtl ofi
        --host "10.77.1.1:$each,10.77.2.1:$each" -n $((2 * each)) -x FI_PROVIDER -x FI_PROVIDER_PATH -x STILLWIRE_KEY_FILE
        -x STILLWIRE_NIC -x STILLWIRE_PERIODIC_FREEZE_MS -x STILLWIRE_PERIODIC_FREEZE_REPORT)
    for tries in 1 2 3; do
        code=0
        (exec >"$work/looked"; sleep 80; look_at_hosts) &
        looking=$!
        seen=$(expect_timeout=100 expect "$words" "${mpirun[@]}" "$@" 2>&1) || code=$?
        pkill -P "$looking" 2>/dev/null || true
        kill "$looking" 2>/dev/null || true
        if [ "$code" = 0 ]; then
            echo "$seen"
            return
        fi
        if grep -q 'A daemon failed to report back' <<<"$seen"; then
            echo "try $tries: a daemon of Open MPI's launcher did not report back"
        elif [ $hung = no ] && grep -qE 'exit code (124|137)' <<<"$seen"; then
            hung=yes
            echo "try $tries: NOT ENDED within 100 s"
            echo "$seen"
            cat "$work/looked"
        else
            break
        fi
        empty_hosts
        rm -f "$work"/reports/*
    done
    echo "$seen"
    exit 1
}
