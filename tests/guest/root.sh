#!/bin/bash
# root: sandboxes of root at each level, in a service of a systemd host with pure cgroup v2.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh

# start ENDING OPTIONS...: starts a foreground sandbox with a tree, in the background. Sets `launcher` and `supervisor`.
start() {
    launcher=
    next
    penfold run --grace 20 "$@" -- bash -c "$(tree)" >/out/run 2>&1 &
    launcher=$!
    within "$DEADLINE" alive $TREE || return 1
    supervisor=$(child_of "$launcher" pf-supervisor)
    [[ -n $supervisor ]]
}

# The members are in a leaf of the sandbox exactly at level cgroup.
in_leaf() {
    local pid
    for pid in $(pgrep -x -f "sleep $token"); do
        grep -qE '/penfold-[0-9a-f]{12}$' "/proc/$pid/cgroup" || return 1
    done
}

foreground() {
    local code

    next
    code=0
    penfold run --contain "$level" -- bash -c "setsid sleep $token & (sleep $token &) ; sleep $token & exit 3" >/out/run 2>&1 || code=$?
    expect "exit: the command's code" 3 "$code"
    # All three are gone at the moment of the return, so nothing waits here.
    holds "exit: no member is left" gone
    holds "exit: no leaf is left" no_leaf

    next
    code=0
    penfold run --contain "$level" --timeout 3 --grace 20 -- bash -c "$(tree)" >/out/run 2>&1 || code=$?
    expect "timeout: code 124" 124 "$code"
    holds "timeout: no member is left" gone
    holds "timeout: no leaf is left" no_leaf

    holds "stop: five members live" start --contain "$level" || sweep
    [[ $level != cgroup ]] || holds "stop: the members are in the leaf" in_leaf
    kill -TERM "$launcher"
    code=0
    wait "$launcher" || code=$?
    expect "stop: code 143" 143 "$code"
    holds "stop: no member is left" gone
    holds "stop: no leaf is left" no_leaf

    holds "SIGKILL of the supervisor: five members live" start --contain "$level" || sweep
    kill -KILL "$supervisor"
    code=0
    wait "$launcher" || code=$?
    expect "SIGKILL of the supervisor: the code of the killed leader" 137 "$code"
    gone_with "SIGKILL of the supervisor"

    holds "SIGKILL of the launcher: five members live" start --contain "$level" || sweep
    kill -KILL "$launcher"
    wait "$launcher" 2>/dev/null
    gone_with "SIGKILL of the launcher"

    holds "SIGKILL of both: five members live" start --contain "$level" || sweep
    # Stopped, so that it cannot end the sandbox between the two signals. The supervisor would be continued.
    kill -STOP "$launcher"
    kill -KILL "$supervisor" "$launcher"
    wait "$launcher" 2>/dev/null
    # At level pidns the kernel ends the rest; otherwise the next command of penfold.
    penfold run true
    gone_with "SIGKILL of both, then the next command"
}

detached() {
    local id code
    next
    id=$(penfold run -d --name web --contain "$level" --grace 20 -- bash -c "echo hello; $(tree)")
    becomes "run -d: five members live" alive $TREE
    expect "ps: running" "$id web running" "$(penfold ps --format '{{.ID}} {{.Names}} {{.State}}' 2>&1)"
    expect "inspect: the level" "$level" "$(penfold inspect web | sed -n 's/.*"level": *"\([a-z]*\)".*/\1/p' | head -1)"
    expect "logs: the output" hello "$(penfold logs web)"
    expect "exec: its output" inside "$(penfold exec web echo inside)"
    code=0
    penfold stop web >/out/stop 2>&1 || code=$?
    expect "stop: code 0" 0 "$code"
    holds "stop: no member is left" gone
    holds "stop: no leaf is left" no_leaf
    code=0
    penfold wait web >/out/wait 2>&1 || code=$?
    expect "wait: code 143" 143 "$code"
    penfold rm web >/dev/null

    for verb in kill 'rm -f'; do
        next
        penfold run -d --name again --contain "$level" -- bash -c "$(tree)" >/dev/null
        becomes "$verb: five members live" alive $TREE
        code=0
        # shellcheck disable=SC2086
        penfold $verb again >/out/kill 2>&1 || code=$?
        expect "$verb: code 0" 0 "$code"
        holds "$verb: no member is left" gone
        holds "$verb: no leaf is left" no_leaf
        penfold rm -f again >/dev/null 2>&1
    done

    for victim in supervisor standby both; do
        next
        id=$(penfold run -d --name victim --contain "$level" -- bash -c "$(tree)")
        becomes "SIGKILL of $victim: five members live" alive $TREE
        local standby supervisor
        standby=$(pgrep -x penfold)
        # At level pidns there is an init of that name below it.
        supervisor=$(child_of "$standby" pf-supervisor)
        case $victim in
            supervisor) kill -KILL "$supervisor" ;;
            standby) kill -KILL "$standby" ;;
            both)
                # Stopped, so that it cannot end the sandbox between the two signals. The supervisor would be continued.
                kill -STOP "$standby"
                kill -KILL "$supervisor" "$standby"
                within "$DEADLINE" unsupervised
                [[ $level == pidns ]] || expect "SIGKILL of both: ps calls it orphaned" orphaned "$(penfold ps --format '{{.State}}' 2>&1)"
                code=0
                penfold gc -f >/out/gc 2>&1 || code=$?
                expect "SIGKILL of both: gc has code 0" 0 "$code"
                ;;
        esac
        gone_with "SIGKILL of $victim"
        penfold rm -f victim >/dev/null 2>&1
    done
}

# judged ENDING: hostile trees, judged by testkit, which has readers of its own.
judged() {
    local ending=$1 tree arguments=() after=() out=/out/judged-$level-$1
    # No storm: on a slow machine it outruns testkit, which then cannot judge it.
    local trees=(setsid daemon zombie-leader fork-on-term child-cgroups)
    # Limit 1 of SPECIFICATION.md: after the death of both processes, a member without the marker and a leaf is out of reach.
    [[ $ending == chain-killed ]] || trees+=(no-environ)
    for tree in "${trees[@]}"; do arguments+=(--tree "$tree"); done
    [[ $ending != chain-killed ]] || after=(--after 'penfold gc -f')
    testkit judge "${arguments[@]}" --end "$ending" --wait 20 --tool-wait 30 "${after[@]}" -v -- \
        penfold run --contain "$level" --grace 3 '{cmd}' >"$out" 2>&1
    # The summary, and what was not well.
    expect "hostile trees, $ending" "${#trees[@]} of ${#trees[@]} trees ended, 0 bystanders hit" "$(tail -n 1 "$out")$(sed '$d' "$out" | grep -v ' ok in ')"
}

level=host
penfold doctor >/out/doctor 2>&1
expect "doctor: no failure" "" "$(grep -F '[fail]' /out/doctor)"
case $(uname -r) in
    5.10.*) expect "doctor: it names what is missing" "*no cgroup.kill (Linux 5.14)*" "$(cat /out/doctor)" ;;
esac
for level in cgroup pidns subreaper; do
    foreground
    detached
    for ending in leader-exit stop chain-killed; do judged $ending; done
done
level=auto
expect "auto is cgroup" cgroup "$(penfold run --report /out/report.json true; sed -n 's/.*"level": *"\([a-z]*\)".*/\1/p' /out/report.json | head -1)"
level=host
holds "nothing is left" unsupervised
penfold doctor >/out/doctor-end 2>&1
expect "doctor: no leak at the end" "" "$(grep -F '[fail]' /out/doctor-end)"
ended
