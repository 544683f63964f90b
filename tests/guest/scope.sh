#!/bin/bash
# scope: scopes of systemd for sandboxes of login sessions and services, and what ends them.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh

scopes() { find /sys/fs/cgroup -type d -name 'penfold-*.scope' 2>/dev/null; }
no_scope() { [[ -z $(scopes) ]]; }
scope_gone() {
    gone_with "$1"
    becomes "$1: no scope is left" no_scope
    expect "$1: no unit is left" "" "$(systemctl list-units --all --no-legend 'penfold-*.scope'; systemctl --user -M alice@ list-units --all --no-legend 'penfold-*.scope' 2>/dev/null)"
}
# field ID FORMAT: a field of a sandbox of alice, or of root with OWN=root.
field() { as "${OWN:-alice}" "penfold ps -a --format '$2' --filter id=$1" 2>&1; }
# begin OPTIONS: `run -d` of OWN in an ssh session that ends then. Sets `id`; /out/err has the warnings.
begin() {
    next
    id=$(as "${OWN:-alice}" "penfold run -d --grace 20 $1 -- bash -c $(printf %q "$(tree)")" 2>/out/err)
    within "$DEADLINE" alive $TREE
}
warned() { tr '\n' ' ' </out/err; }
in_scope() { [[ $(scopes) == */penfold-$id.scope ]]; }
logged_out() { [[ $(loginctl show-user -p State --value alice 2>/dev/null) != active ]]; }

mkdir -p /root/.ssh && cat /root/.ssh/id_ed25519.pub >>/root/.ssh/authorized_keys
becomes "alice can log in" as alice true
becomes "root can log in" as root true
loginctl enable-linger alice
# The first scope of a manager that was just started takes longer in an emulated guest than penfold waits.
becomes "alice's manager makes scopes" as alice 'penfold run --unit user true'
becomes "so does the system's" penfold run --unit system true

level=session
holds "run -d: five members live" begin ''
holds "run -d: its scope exists" in_scope
expect "run -d: it is below the user's manager" "*/user@1000.service/*" "$(scopes)"
expect "run -d: no warning with linger" "" "$(warned)"
expect "run -d: the level is cgroup" "*cgroup*" "$(as alice "penfold inspect $id" | grep -o '"level":"[a-z]*"' | sort -u)"
expect "run -d: supervisors are beside the leaf" "2" "$(wc -l <"$(scopes)/supervisor/cgroup.procs")"
expect "run -d: the members are in the leaf, with the shell among them" "$((TREE + 1))" "$(wc -l <"$(scopes)/penfold-$id/cgroup.procs")"
holds "run -d: controllers can be enabled below" sh -c "echo +pids >$(scopes)/cgroup.subtree_control && grep -q pids $(scopes)/penfold-$id/cgroup.controllers"
expect "exec runs in the leaf" "*.scope/penfold-$id/*" "$(as alice "penfold exec $id cat /proc/self/cgroup")"
becomes "the session has ended" logged_out
holds "linger on: it lives on after the logout" alive $TREE
expect "stop: code 0" 0 "$(as alice "penfold stop $id" >/dev/null; echo $?)"
holds "stop: the scope is gone when stop returns" no_scope
scope_gone stop
for ending in "kill" "rm -f"; do
    holds "$ending: five members live" begin ''
    expect "$ending: code 0" 0 "$(as alice "penfold $ending $id" >/dev/null; echo $?)"
    holds "$ending: the scope is gone when it returns" no_scope
    scope_gone "$ending"
done
holds "systemctl stop: five members live" begin ''
as alice "systemctl --user stop penfold-$id.scope"
scope_gone "systemctl stop"
expect "systemctl stop: the status is stopped" "*topped*" "$(field "$id" '{{.State}} {{.Status}}')"
holds "SIGKILL of both: five members live" begin ''
# shellcheck disable=SC2046
kill -KILL $(penfolds)
becomes "SIGKILL of both: both are gone" unsupervised
as alice penfold gc -f --older-than 0 >/out/gc 2>&1
scope_gone "SIGKILL of both"
expect "SIGKILL of both: nothing claims to live" "" "$(as alice 'penfold ps -q')"
next
as alice "penfold run -d -- sh -c 'setsid sleep $token & exit 3'" >/dev/null 2>&1
scope_gone "natural end"
next
expect "foreground: code 3" 3 "$(as alice "penfold run --contain cgroup --report report -- sh -c 'setsid sleep $token & exit 3'" >/dev/null 2>&1; echo $?)"
holds "foreground: the scope is gone when it returns" no_scope
expect "foreground: the level is cgroup" '*"cgroup"' "$(grep -o '"level": *"[a-z]*"' /home/alice/report)"
scope_gone foreground
expect "a plain foreground run asks for no scope" "*session-*.scope" "$(as alice 'penfold run -- cat /proc/self/cgroup' | grep ^0::)"
expect "--unit system is refused to alice" "125 *" "$(as alice 'penfold run --unit system -- true 2>&1; echo "$? "' | tail -n 1)x"
expect "doctor with linger: a warning about the foreground default; strict fails" "0 1" "$(as alice 'penfold doctor >/dev/null; a=$?; penfold doctor --strict >doctor; b=$?; echo $a $b')"
record info doctor "$(cat /home/alice/doctor)"
pid=$(systemctl show -p MainPID --value user@1000.service)
kill -STOP "$pid"
next
begun=$SECONDS
timeout 60 setpriv --reuid 1000 --regid 1000 --init-groups env HOME=/home/alice XDG_RUNTIME_DIR=/run/user/1000 penfold run -d --unit user -- sleep $token >/out/run 2>&1
expect "a hung manager: code 125" 125 "$?"
expect "a hung manager: the reason" "*no answer within*" "$(cat /out/run)"
record info "a hung manager" "$((SECONDS - begun)) s"
kill -CONT "$pid"
gone_with "a hung manager"

level=logout
loginctl disable-linger alice
becomes "alice is logged out" eval '! loginctl list-users --no-legend | grep -q alice'
holds "linger off: five members live" begin ''
expect "linger off: one line of warning" "penfold: sandbox $id: logout ends it*" "$(warned)"
scope_gone "linger off: the logout"
expect "linger off: ps shows nothing alive" "" "$(as alice 'penfold ps -q')"
expect "linger off: wait tells no such sandbox" "125" "$(as alice "penfold wait $id" >/dev/null 2>&1; echo $?)"
expect "doctor without linger: a warning, strict fails" "0 1" "$(as alice 'penfold doctor >/dev/null; a=$?; penfold doctor --strict >/dev/null; b=$?; echo $a $b')"

level=root
export OWN=root
holds "run -d of root: five members live" begin ''
expect "run -d of root: a scope of the system" "*/system.slice/penfold-$id.scope" "$(scopes)"
becomes "run -d of root: its session has ended" eval '! loginctl list-sessions --no-legend | grep -q " root "'
holds "run -d of root: it lives on" alive $TREE
expect "run -d of root: stop" 0 "$(penfold stop "$id" >/dev/null; echo $?)"
holds "run -d of root: the scope is gone when stop returns" no_scope
scope_gone "run -d of root"

level=service
# service OPTIONS: `run -d` of root as a service. Sets `id`.
service() {
    next
    rm -f /out/service /out/err
    # shellcheck disable=SC2086
    systemd-run --quiet --unit=job -p StandardOutput=file:/out/service -p StandardError=file:/out/err $1 \
        penfold run -d --grace 20 $2 -- bash -c "$(tree)"
    within "$DEADLINE" alive $TREE
    id=$(cat /out/service)
}
ended_service() { [[ $(systemctl show -p SubState --value job.service) != running && $(systemctl show -p SubState --value job.service) != start ]]; }
forget_service() { systemctl stop job.service 2>/dev/null; systemctl reset-failed job.service 2>/dev/null; true; }
holds "oneshot: five members live" service '-p Type=oneshot'
becomes "oneshot: the service has ended" ended_service
holds "oneshot: the sandbox lives on" alive $TREE
holds "oneshot: in a scope" in_scope
expect "oneshot: no warning" "" "$(warned)"
systemctl stop "penfold-$id.scope"
scope_gone "oneshot: systemctl stop of the scope"
expect "oneshot: the status is stopped" "*topped*" "$(penfold ps -a --format '{{.State}} {{.Status}}' --filter id="$id")"
forget_service
holds "oneshot in a slice: five members live" service '-p Type=oneshot -p Slice=ci.slice'
expect "oneshot in a slice: the scope is in the slice" "*/ci.slice/penfold-$id.scope" "$(scopes)"
penfold kill "$id"
scope_gone "oneshot in a slice"
forget_service
holds "RemainAfterExit: five members live" service '-p Type=oneshot -p RemainAfterExit=yes'
expect "RemainAfterExit: a warning" "*the end of job.service ends it*" "$(warned)"
holds "RemainAfterExit: no scope" no_scope
systemctl stop job.service
gone_with "RemainAfterExit: systemctl stop"
expect "RemainAfterExit: the status is stopped" "*topped*" "$(penfold ps -a --format '{{.State}} {{.Status}}' --filter id="$id")"
forget_service
holds "KillMode=process: five members live" service '-p Type=oneshot -p KillMode=process'
becomes "KillMode=process: the service has ended" ended_service
holds "KillMode=process: it lives on, without a scope" eval 'alive $TREE && no_scope'
expect "KillMode=process: no warning" "" "$(warned)"
penfold kill "$id"
gone_with "KillMode=process"
forget_service
holds "delegated: five members live" service '-p Type=forking -p Delegate=yes'
holds "delegated: no scope" no_scope
expect "delegated: no warning" "" "$(warned)"
forget_service
gone_with "delegated: systemctl stop"
next
systemd-run --quiet --wait -p Type=oneshot penfold run -d --unit none -- sleep $token >/dev/null 2>&1
gone_with "--unit none in a oneshot service"
systemd-run --quiet --wait -p Type=oneshot -p Environment=PENFOLD_UNIT=none penfold run -d -- sleep $token >/dev/null 2>&1
gone_with "PENFOLD_UNIT=none in a oneshot service"
expect "doctor of root: code 0" 0 "$(penfold doctor >/dev/null; echo $?)"
no_leaks() { penfold doctor --json | grep -q '"leaks":\[\]'; }
holds "doctor sees no leaks" no_leaks
ended
