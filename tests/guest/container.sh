#!/bin/bash
# container: penfold in containers of podman, and podman in a sandbox. The statements of docs/containers.md.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh

# The image: busybox and penfold.
image=localhost/box
build() {
    local root=/tmp/box
    mkdir -p $root/bin $root/tmp $root/run $root/etc $root/proc $root/sys $root/dev $root/out
    cp /bin/busybox $root/bin/busybox
    for name in sh sleep setsid cat ls kill ps true id mkdir touch; do ln -sf busybox $root/bin/$name; done
    install -m 755 /guest/penfold $root/bin/penfold
    echo root:x:0:0::/:/bin/sh >$root/etc/passwd
    tar -C $root -cf /tmp/box.tar .
    chmod 644 /tmp/box.tar
}
build
level=host
expect "podman takes the image" 0 "$(podman import /tmp/box.tar box >/out/import 2>&1; echo $?)"
expect "podman takes the image for alice" 0 "$(as alice podman import /tmp/box.tar box >/out/import-alice 2>&1; echo $?)"

# The shell of the image has no -c with functions of bash; the tree is the same.
mkdir -p /run/box
chmod 1777 /run/box
podman_run() { podman run --network none --log-driver none -v /run/box:/out "$@"; }
level_of() { sed -n 's/.*"level": *"\([a-z]*\)".*/\1/p' "$1" | head -n 1; }
# ends_in FILE: how the members of the report ended. busybox may name a member `exe`.
ends_in() { grep -o '"how": "[a-z]*"' "$1" | sort | uniq -c | sed 's/ *//; s/"how": //; s/"//g' | tr '\n' ' '; }
no_container() { [[ -z $(podman ps -aq) ]]; }
pid_in() { podman inspect -f '{{.State.Pid}}' "$1"; }

# Pid 1 of the image: what it is started with, and the level that `auto` takes there.
pid1() {
    local name=$1 wanted=$2 code
    shift 2
    level=$name
    rm -f /run/box/report.json
    next
    code=0
    podman_run --rm "$@" box penfold run --report /out/report.json -- sh -c "setsid sleep $token & (sleep $token &) ; exit 3" >/out/run 2>&1 || code=$?
    expect "pid 1: the command's code" 3 "$code"
    expect "pid 1: the level" "$wanted" "$(level_of /run/box/report.json)"
    holds "pid 1: no member is left" gone

    next
    rm -f /run/box/report.json
    podman_run -d --name one "$@" box penfold run --grace 20 --report /out/report.json -- sh -c "$(tree)" >/out/run 2>&1
    becomes "stop: five members live" alive $TREE
    holds "stop: penfold is pid 1" grep -qE '^NSpid:.*[[:space:]]1$' "/proc/$(pid_in one)/status"
    expect "stop: podman stop" 0 "$(timeout 200 podman stop -t 60 one >/out/stop 2>&1; echo $?)"
    becomes "stop: no member is left" gone
    expect "stop: the code of the container" 143 "$(podman wait one 2>&1)"
    podman rm one >/dev/null
    expect "stop: at least the five died of TERM, and none had to be killed" "[5-9] term " "$(ends_in /run/box/report.json)"
    becomes "stop: no container is left" no_container

    # Pid 1 reaps what is no member of a sandbox, too.
    podman_run -d --name one "$@" box penfold run -- sh -c 'while :; do (sh -c "exit 0" &) ; sleep 1; done' >/out/run 2>&1
    podman exec one sh -c '(true &); (true &); true'
    no_zombie() { ! podman exec one ps -o stat 2>/dev/null | grep -q Z; }
    becomes "pid 1 reaps" no_zombie
    podman rm -f -t 60 one >/dev/null 2>&1
    becomes "pid 1 reaps: no container is left" no_container
}
pid1 plain subreaper
pid1 privileged cgroup --privileged
pid1 host-cgroupns '*' --cgroupns host
level=exec
podman_run -d --name one box penfold run -- sleep 100000 >/out/run 2>&1
becomes "the container runs" podman exec one true
next
code=0
podman exec one penfold run -- sh -c "setsid sleep $token & (sleep $token &) ; exit 3" >/out/run 2>&1 || code=$?
expect "exec: the command's code" 3 "$code"
holds "exec: no member is left" gone
# The death of the client ends nothing by itself: podman ends no process in the container, and penfold's parent is not the
# client.
next
podman exec -i one penfold run -- sh -c "$(tree)" </dev/zero >/out/run 2>&1 &
client=$!
becomes "exec -i, the client is killed: five members live" alive $TREE
kill -KILL $client
wait $client 2>/dev/null
client_gone() { ! kill -0 $client 2>/dev/null; }
becomes "exec -i, the client is killed: it is gone" client_gone
holds "exec -i, the client is killed: the sandbox lives on" alive $TREE
podman kill one >/dev/null 2>&1
becomes "exec: the end of the container ends it" gone
podman rm -f -t 10 one >/dev/null 2>&1
# A time limit, or an end with standard input, is what ends it.
podman_run -d --name one box penfold run -- sleep 100000 >/out/run 2>&1
next
podman exec one penfold run --timeout 5 -- sh -c "$(tree)" >/out/run 2>&1 &
client=$!
becomes "exec with a time limit, the client is killed: five members live" alive $TREE
kill -KILL $client
wait $client 2>/dev/null
becomes "exec with a time limit, the client is killed: no member is left" gone
next
podman exec one penfold run -d --name inside -- sh -c "$(tree)" >/out/run 2>&1
becomes "run -d in a container: five members live" alive $TREE
expect "run -d in a container: ps there" "inside running" "$(podman exec one penfold ps --filter name=inside --format '{{.Names}} {{.State}}')"
expect "run -d in a container: the host sees no orphan" "" "$(penfold ps --filter status=orphaned -q 2>&1)"
expect "run -d in a container: gc of the host leaves it alone" "0 $TREE" "$(penfold gc -f >/out/gc 2>&1; echo $?) $(count)"
expect "run -d in a container: stop" 0 "$(podman exec one penfold stop inside >/out/run 2>&1; echo $?)"
holds "run -d in a container: no member is left" gone
podman rm -f -t 10 one >/dev/null 2>&1
becomes "no container is left" no_container

level=pid-host
next
podman_run -d --name one --pid host box penfold run --report /out/report.json -- sh -c "$(tree)" >/out/run 2>&1
becomes "five members live" alive $TREE
expect "the host calls it no orphan" "" "$(penfold ps --filter status=orphaned -q 2>&1)"
expect "gc of the host leaves it alone" "0 $TREE" "$(penfold gc -f >/out/gc 2>&1; echo $?) $(count)"
penfold doctor >/out/doctor 2>&1
expect "doctor of the host has no leak" "" "$(grep -F '[fail]' /out/doctor)"
outer=$token
next
podman exec one penfold run -d --name there -- sleep $token >/out/run 2>&1
becomes "run -d: the member lives" alive 1
expect "run -d: the host does not end it by --all" "1" "$(penfold kill --all -f >/out/kill 2>&1; count)"
expect "run -d: stop in the container" 0 "$(podman exec one penfold stop there >/out/stop 2>&1; echo $?)"
holds "run -d: no member is left" gone
inner=$token token=$outer
expect "podman stop" 0 "$(timeout 200 podman stop -t 60 one >/out/stop 2>&1; echo $?)"
becomes "no member is left" gone
token=$inner
podman rm -f one >/dev/null 2>&1
next
podman_run -d --name one --pid host --privileged box penfold run -- sh -c "$(tree)" >/out/run 2>&1
becomes "privileged: five members live" alive $TREE
kill -KILL "$(pid_in one)"
becomes "privileged, SIGKILL of the launcher: no member is left" gone
becomes "privileged, SIGKILL of the launcher: no leaf is left" no_leaf
podman rm -f -t 10 one >/dev/null 2>&1

level=rootless
next
code=0
as alice "podman run --rm --network none box penfold run -q --report - -- sh -c 'setsid sleep $token & (sleep $token &) ; exit 3'" >/out/rootless 2>&1 || code=$?
expect "pid 1: the command's code" 3 "$code"
expect "pid 1: the level" subreaper "$(level_of /out/rootless)"
holds "pid 1: no member is left" gone
next
as alice "podman run -d --name one --network none --log-driver none box penfold run --grace 20 -- sh -c $(printf %q "$(tree)")" >/out/run 2>&1
becomes "stop: five members live" alive $TREE
expect "stop: podman stop" 0 "$(as alice timeout 200 podman stop -t 60 one >/out/stop 2>&1; echo $?)"
becomes "stop: no member is left" gone
as alice "podman rm -f -t 10 one" >/dev/null 2>&1

level=below
# podman below penfold: conmon is a member, whatever it does; the container ends with the sandbox.
for contain in cgroup subreaper; do
    next
    penfold run --contain $contain --grace 20 -- podman run --network none --log-driver none --name one -v /run/box:/out box sh -c "$(tree)" >/out/run 2>&1 &
    launcher=$!
    becomes "$contain: five members live" alive $TREE
    conmon=$(pgrep -x conmon)
    holds "$contain: conmon lives" test -n "$conmon"
    kill -TERM $launcher
    code=0
    wait $launcher || code=$?
    expect "$contain: the code" 143 "$code"
    becomes "$contain: no member is left" gone
    becomes "$contain: conmon has ended" eval '! pgrep -x conmon'
    becomes "$contain: no leaf is left" no_leaf
    expect "$contain: podman has not noticed" "one Up *" "$(podman ps -a --format '{{.Names}} {{.Status}}')"
    expect "$contain: podman rm -f removes the rest" 0 "$(timeout 200 podman rm -f -t 10 one >/out/rm 2>&1; echo $?)"
    becomes "$contain: no container is left" no_container

    next
    penfold run --contain $contain -- podman run -d --network none --log-driver none --name one box sh -c "$(tree)" >/out/run 2>&1
    expect "$contain: run -d of podman in a foreground sandbox: code" 0 $?
    holds "$contain: run -d of podman in a foreground sandbox: nothing is left at the end" gone
    podman rm -f -t 10 one >/dev/null 2>&1
    becomes "$contain: run -d of podman: no container is left" no_container
done
level=host
holds "no process of penfold is left" unsupervised
ended
