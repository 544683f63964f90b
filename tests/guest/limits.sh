#!/bin/bash
# limits: limits of memory, processes and processor time, as root in a service and in an ssh session, and as a user.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh

# eat MIB NUMBER: two members `sleep NUMBER`, one of them in another session, and a process that uses so much memory.
cat >/usr/local/bin/eat <<'END'
#!/bin/bash
setsid sleep "$2" &
sleep "$2" &
python3 -c "b = b'x' * ($1 << 20)"
echo eaten
END
# storm NUMBER: forks `sleep NUMBER` a thousand times, writes each error once, and becomes such a process itself.
cat >/usr/local/bin/storm <<'END'
#!/usr/bin/python3
import errno, os, sys
failed = set()
for _ in range(1000):
    try:
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", sys.argv[1]])
    except OSError as error:
        failed.add(errno.errorcode[error.errno])
print("failed:", *failed, flush=True)
os.execvp("sleep", ["sleep", sys.argv[1]])
END
# burn NUMBER: two processes that only calculate, and a member `sleep NUMBER`.
cat >/usr/local/bin/burn <<'END'
#!/bin/bash
while :; do :; done &
while :; do :; done &
exec sleep "$1"
END
chmod 755 /usr/local/bin/{eat,storm,burn}

# try COMMAND: runs a command of the shell in the surroundings of the level. Its last line is the exit code.
try() {
    # shellcheck disable=SC2086
    case $level in
        service) systemd-run --quiet --wait --pipe --working-directory=/root ${PROPERTIES:-} /bin/bash -c "{ $1; echo \$?; } 2>&1" ;;
        # The shell says of a killed command that it was killed, and must say so before the code.
        session) as root "{ $1; echo \$?; } 2>&1" ;;
        user) as alice "{ $1; echo \$?; } 2>&1" ;;
    esac
}
last() { tail -n 1 <<<"$1"; }
words() { tr '\n' ' ' <<<"$1"; }
# field NAME JSON: the first value of a field.
field() { grep -o "\"$1\": *[^,}]*" <<<"$2" | head -n 1 | sed 's/^[^:]*: *//; s/"//g'; }
limits_of() { grep -o '"limits":{[^}]*}' <<<"$1" | head -n 1; }
leaf_of() { find /sys/fs/cgroup -type d -name "penfold-$1" 2>/dev/null; }
held() { cat "$(leaf_of "$id")/$1" 2>&1; }
no_scope() { [[ -z $(find /sys/fs/cgroup -type d -name 'penfold-*.scope' 2>/dev/null) ]]; }

memory() {
    local out report bystander
    bystander=$(last "$(try "penfold run -d --pids 10 --name bystander -- sleep 9999 >/dev/null")")
    expect "memory: a bystander runs" 0 "$bystander"
    next
    out=$(try "penfold run --memory 64M --report report -- eat 300 $token")
    expect "memory: the code is that of SIGKILL" 137 "$(last "$out")"
    expect "memory: the summary" "*ran out of memory (limit 64 MiB)*" "$out"
    holds "memory: no member is left when it returns" gone
    report=$(try 'cat report')
    expect "memory: the cause" memory "$(field cause "$report")"
    expect "memory: the level" cgroup "$(field level "$report")"
    expect "memory: the limit is in the report" 67108864 "$(field memory_bytes "$report")"
    expect "memory: enough memory is no trouble" 0 "$(last "$(try "penfold run -q --memory 600M -- eat 100 $token")")"
    next
    id=$(try "penfold run -d --memory 64M --pids 100 -- sh -c 'sleep $token & sleep $token'" | head -n 1)
    holds "memory, detached: two members live" within "$DEADLINE" alive 2
    expect "memory, detached: what the kernel holds" "67108864 0 1 100" "$(held memory.max) $(held memory.swap.max) $(held memory.oom.group) $(held pids.max)"
    out=$(try "penfold inspect $id")
    expect "memory, detached: inspect has the limits" '"limits":{"memory_bytes":67108864,"pids":100*' "$(limits_of "$out")"
    out=$(try "penfold exec $id eat 300 $token")
    # The exec and its sandbox end in the same instant. The answer of the exec's supervisor may come too late: 120.
    expect "exec beyond the limit: killed" "@(137|120)" "$(last "$out")"
    becomes "exec beyond the limit: the whole sandbox ends" gone
    expect "exec beyond the limit: the cause of the sandbox" memory "$(field cause "$(try "penfold wait $id; penfold inspect $id")")"
    expect "bystander: it lives on" running "$(try "penfold ps --filter name=bystander --format '{{.State}}'" | head -n 1)"
    expect "bystander: kill" 0 "$(last "$(try 'penfold kill bystander >/dev/null')")"
    gone_with memory
    holds "memory: no scope is left" no_scope
}

fork_storm() {
    next
    id=$(try "penfold run -d --pids 50 -- storm $token" | head -n 1)
    becomes "storm: fifty processes" alive 50
    becomes "storm: forks fail with EAGAIN only" eval '[[ $(try "penfold logs $id" | head -n 1) == "failed: EAGAIN" ]]'
    expect "storm: the kernel counts fifty" "50 50" "$(held pids.max) $(held pids.current)"
    expect "storm: kill" 0 "$(last "$(try "penfold kill $id >/dev/null")")"
    holds "storm: gone when kill returns" gone
    gone_with storm
}

usage() { awk '$1 == "usage_usec" {print $2}' "$(leaf_of "$id")/cpu.stat"; }
now_us() { awk '{printf "%d", $1 * 1000000}' /proc/uptime; }
processor() {
    local before after begun took share
    next
    id=$(try "penfold run -d --cpus 0.5 -- burn $token" | head -n 1)
    holds "cpus: it runs" within "$DEADLINE" alive 1
    expect "cpus: what the kernel holds" "50000 100000" "$(held cpu.max)"
    begun=$(now_us) before=$(usage)
    # The time to measure over; nothing is waited for.
    sleep 20
    after=$(usage) took=$(($(now_us) - begun))
    share=$(((after - before) * 100 / took))
    record info "cpus: share" "$share % of a processor in $((took / 1000)) ms"
    holds "cpus: two busy loops use at most six tenths of a processor" test "$share" -le 60
    holds "cpus: they do run" test "$share" -ge 10
    holds "cpus: they were throttled" eval '(($(awk "\$1 == \"nr_throttled\" {print \$2}" "$(leaf_of "$id")/cpu.stat") > 0))'
    expect "cpus: kill" 0 "$(last "$(try "penfold kill $id >/dev/null")")"
    gone_with cpus
}

# refused NAME PATTERN COMMAND: code 125, a reason, and no trace.
refused() {
    local out
    out=$(try "$3")
    expect "$1: code 125" 125 "$(last "$out")"
    expect "$1: the reason and the hint" "$2" "$(words "$out")"
    holds "$1: nothing is left" eval 'no_leaf && no_scope'
}

mkdir -p /root/.ssh && cat /root/.ssh/id_ed25519.pub >>/root/.ssh/authorized_keys
becomes "alice can log in" as alice true
becomes "root can log in" as root true
loginctl enable-linger alice
becomes "alice's manager makes scopes" as alice 'penfold run --unit user true'
becomes "so does the system's" penfold run --unit system true
record info "controllers of alice's manager" "$(cat /sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers)"

level=service
memory
fork_storm
processor
next
PROPERTIES='-p MemoryMax=80M -p MemorySwapMax=0'
out=$(try "penfold run --memory 500M --report report -- eat 300 $token")
expect "a service with less memory: the code" 137 "$(last "$out")"
expect "a service with less memory: its limit holds" "*ran out of memory (limit 80 MiB)*" "$out"
expect "a service with less memory: the cause" memory "$(field cause "$(cat /root/report)")"
out=$(try "penfold run --pids 30 --report report -- eat 300 $token")
expect "a service with less memory, another limit asked for: it holds too" "*ran out of memory (limit 80 MiB)*" "$out"
PROPERTIES=
gone_with "a service with less memory"
refused "--unit none in a service" "*memory*which has processes of its own*hint: *--unit*Delegate=yes*" 'penfold run --unit none --memory 64M -- true'
# As DelegateSubgroup= does, which came with systemd 254.
own='cd /sys/fs/cgroup/$(sed s/^0::// /proc/self/cgroup) && mkdir main && echo 0 >main/cgroup.procs && cd /root'
PROPERTIES='-p Delegate=yes'
next
out=$(try "$own; penfold run --memory 64M --report report -- sh -c 'cat /proc/self/cgroup; eat 300 $token'")
expect "a delegated service in a subgroup: the leaf is beside it" "*/run-*.service/penfold-*" "$(head -n 1 <<<"$out")"
expect "a delegated service in a subgroup: the cause" memory "$(field cause "$(cat /root/report)")"
gone_with "a delegated service in a subgroup"
out=$(try "$own; penfold run --unit none --pids 20 -d --name sub -- storm $token; timeout 60 sh -c 'until penfold logs sub | grep failed; do sleep 0.2; done'; penfold kill sub")
expect "a delegated service in a subgroup: --pids" "*failed: EAGAIN*" "$(words "$out")"
gone_with "a delegated service in a subgroup, detached"
out=$(try "$own; penfold run --contain pidns --memory 64M --report report -- eat 300 $token")
expect "pidns: the cause" memory "$(field cause "$(cat /root/report)")"
expect "pidns: the level" pidns "$(field level "$(cat /root/report)")"
gone_with pidns
PROPERTIES=
out=$(try "penfold run --memory 200M -- penfold run --memory 50M true")
expect "a sandbox in a sandbox: refused" 125 "$(last "$out")"
expect "a sandbox in a sandbox: the hint" "*enclosing sandbox*" "$(words "$out")"
out=$(try "penfold run --memory 64M --report report -- penfold run -q -- eat 300 $token")
expect "a sandbox in a sandbox: the outer limit holds" memory "$(field cause "$(cat /root/report)")"
gone_with "a sandbox in a sandbox"
expect "doctor: all limits work" "*limits: --memory, --pids, --cpus in a scope from*" "$(try 'penfold doctor')"

level=session
memory
fork_storm
processor
refused "--unit none in a session" "*memory*which has processes of its own*hint: *--unit*Delegate=yes*" 'penfold run --unit none --memory 64M -- true'

level=user
memory
fork_storm
refused "--unit none in a session" "*hint: *--unit*" 'penfold run --unit none --memory 64M -- true'
has_cpu() { grep -qw cpu /sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers; }
holds "alice's manager has the controller cpu" has_cpu
processor
expect "doctor: all limits work" "*limits: --memory, --pids, --cpus in a scope from*" "$(try 'penfold doctor')"
# As with systemd before version 252.
loginctl disable-linger alice
becomes "alice is logged out" eval '! loginctl list-users --no-legend | grep -q alice'
mkdir -p /etc/systemd/system/user@.service.d
printf '[Service]\nDelegate=\nDelegate=memory pids\n' >/etc/systemd/system/user@.service.d/delegate.conf
systemctl daemon-reload
loginctl enable-linger alice
becomes "alice's manager makes scopes again" as alice 'penfold run --unit user true'
refused "--cpus without the controller" '*`cpu` is not available*hint: *Delegate=cpu*' 'penfold run --cpus 1 -- true'
expect "doctor: the missing controller" "*--cpus not*" "$(try 'penfold doctor')"
no_leaks() { penfold doctor --json | grep -q '"leaks":\[\]'; }
level=-
holds "doctor sees no leaks" no_leaks
ended
