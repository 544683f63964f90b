#!/bin/bash
# reboot: records on a disk that outlives a reboot. The first boot makes sandboxes, the second one looks at what is left.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh
disk=/var/lib/penfold
alice=/home/alice/penfold
there() { penfold --root $disk "$@"; }
hers() { as alice "penfold --root $alice $*"; }

if [[ ! -e /var/lib/booted ]]; then
    touch /var/lib/booted
    level=before
    next
    there run -d --name ended -- sh -c 'echo said; exit 7' >/out/run 2>&1
    expect "the one that has ended: its code" 7 "$(there wait ended >/dev/null; echo $?)"
    for contain in cgroup pidns subreaper; do
        there run -d --name $contain --contain $contain -- bash -c "echo said; exec sleep $token" >/out/run 2>&1
    done
    there run -d --name keeper --on-supervisor-exit keep --ttl 8h -- sleep $token >/out/run 2>&1
    there run -d --name scratch --scratch -- bash -c "touch \$TMPDIR/file; exec sleep $token" >/out/run 2>&1
    hers run -d --name hers -- sleep $token >/out/run 2>&1
    penfold run -d --name usual -- sleep $token >/out/run 2>&1
    becomes "seven sandboxes live" alive 7
    expect "ps lists five of the disk" 5 "$(there ps -q | wc -l)"
    there ps -a -q >/var/lib/before
    # No shutdown: as after a loss of power. The members have no time to end in order.
    sync
    echo reboot >/dev/ttyS1
    sync
    echo 1 >/proc/sys/kernel/sysrq
    echo b >/proc/sysrq-trigger
    sleep infinity
fi

level=after
token=7001
holds "no member lives" gone
expect "the usual state root is empty" "" "$(penfold ps -a -q)"
there ps -a --json >/out/ps 2>&1
expect "nothing of the disk runs" "" "$(there ps -q)"
expect "the ended one is as it was" "ended exited (7)" "$(there ps -a --filter name=ended --format '{{.Names}} {{.Status}}' 2>&1 | sed 's/).*/)/')"
expect "its code" 7 "$(there wait ended >/dev/null 2>&1; echo $?)"
expect "its log" said "$(there logs ended)"
for name in cgroup pidns subreaper keeper scratch; do
    expect "$name: lost" "$name lost" "$(there ps -a --filter name=$name --format '{{.Names}} {{.State}}' 2>&1)"
    expect "$name: its exit code is unknown" 120 "$(timeout 100 penfold --root $disk wait $name >/dev/null 2>&1; echo $?)"
done
expect "its log is kept" said "$(there logs cgroup 2>&1)"
expect "alice's: lost" lost "$(hers ps -a --format '{{.State}}' 2>&1)"
there doctor >/out/doctor 2>&1
expect "stop of a lost one: code 0" 0 "$(there stop cgroup >/out/stop 2>&1; echo $?)"
# A new pid may be that of an old member: nothing of this boot may be signalled.
sleep 1000 &
bystander=$!
next
there run -d --name cgroup -- sleep $token >/out/run 2>&1
becomes "the name is free: a new one lives" alive 1
# Without the filter, a record that the command above is just recovering may be listed: its lock is held.
expect "the name means the new one" "cgroup running" "$(there ps --filter name=cgroup --format '{{.Names}} {{.State}}')"
# The command above has recovered all but the one that was to be kept, which is left to `gc`. An ended sandbox keeps its log
# until it is old enough.
expect "gc: code 0" 0 "$(there gc -f --older-than 1h >/out/gc 2>&1; echo $?)"
expect "gc left the ended ones as lost" 5 "$(there ps -a --format '{{.State}}' | grep -c lost)"
expect "gc of what is old: code 0" 0 "$(there gc -f --older-than 0s >/out/gc-old 2>&1; echo $?)"
expect "gc removed the old records, and kept the living" "cgroup running" "$(there ps -a --format '{{.Names}} {{.State}}')"
expect "gc of alice: code 0" 0 "$(hers gc -f >/out/gc-alice 2>&1; echo $?)"
expect "gc of what is old, of alice: code 0" 0 "$(hers gc -f --older-than 0s >/out/gc-alice-old 2>&1; echo $?)"
expect "gc of alice removed the record" "" "$(hers ps -a -q)"
holds "the living one lives" alive 1
holds "the bystander lives" kill -0 $bystander
expect "nothing of the old ones is on the disk" 1 "$(find $disk/sandboxes -mindepth 1 -maxdepth 1 | wc -l)"
there rm -f cgroup >/dev/null 2>&1
gone_with "rm -f"
expect "no scratch directory is left" "" "$(find /tmp /var/tmp $disk -name '*scratch*' 2>/dev/null)"
kill $bystander
ended
