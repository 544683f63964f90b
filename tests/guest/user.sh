#!/bin/bash
# user: sandboxes of an ordinary user, in ssh sessions, in a delegated scope and in services, with and without lingering.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh

# The level of a foreground run of alice, with words before `penfold`.
level_of() { as alice "$* penfold run -q --report - true" | sed -n 's/.*"level": *"\([a-z]*\)".*/\1/p' | head -n 1; }

# start PREFIX OPTIONS: starts a sandbox of alice in a session of its own. Sets `launcher` and `supervisor`.
start() {
    next
    as alice "$1 penfold run --grace 20 $2 -- bash -c $(printf %q "$(tree)")" >/out/run 2>&1 &
    session=$!
    within "$DEADLINE" alive $TREE || return 1
    # At level pidns there is an init of that name too, and it is younger.
    supervisor=$(pgrep -o -x -u alice pf-supervisor)
    launcher=$(ps -o ppid= -p "$supervisor" | tr -d ' ')
    [[ $(cat "/proc/$launcher/comm") == penfold ]]
}

# endings PREFIX OPTIONS: the endings of one level.
endings() {
    local code
    for ending in stop "SIGKILL of the supervisor" "SIGKILL of the launcher" "SIGKILL of both"; do
        holds "$ending: five members live" start "$1" "$2" || { sweep; continue; }
        case $ending in
            stop) kill -TERM "$launcher" ;;
            *supervisor) kill -KILL "$supervisor" ;;
            *launcher) kill -KILL "$launcher" ;;
            *both) kill -KILL "$launcher" "$supervisor" ;;
        esac
        if [[ $ending == *both ]]; then
            becomes "$ending: both are gone" unsupervised
            as alice penfold run true
            becomes "$ending, then the next command: no member is left" gone
        fi
        # The session ends when no member holds its output any more.
        code=0
        wait "$session" || code=$?
        # ssh has 255 for a command that died of a signal.
        [[ $ending != stop ]] || expect "stop: the command died of a signal" 255 "$code"
        gone_with "$ending"
    done
    next
    code=0
    as alice "$1 penfold run $2 --timeout 3 --grace 20 -- bash -c $(printf %q "$(tree)")" >/out/run 2>&1 || code=$?
    expect "timeout: code 124" 124 "$code"
    holds "timeout: no member is left" gone
    holds "timeout: no leaf is left" no_leaf
}

becomes "alice can log in" as alice true

level=subreaper
expect "auto in an ssh session" subreaper "$(level_of '')"
endings '' '--contain subreaper'
level=pidns
endings '' '--contain pidns'
level=cgroup
scope='systemd-run --user --scope --quiet -p Delegate=yes'
expect "auto in a delegated user scope" cgroup "$(level_of "$scope")"
expect "auto in a service of the user's manager" cgroup \
    "$(as alice 'systemd-run --user --quiet --wait --pipe -p Delegate=yes penfold run -q --report - true' | sed -n 's/.*"level": *"\([a-z]*\)".*/\1/p' | head -n 1)"
endings "$scope" ''
next
as alice "$scope penfold run -- bash -c $(printf %q "$(tree)")" >/out/run 2>&1 &
becomes "scope: five members live" alive $TREE
in_leaf() { for pid in $(pgrep -x -f "sleep $token"); do grep -q '/user@1000.service/.*/penfold-[0-9a-f]*$' "/proc/$pid/cgroup" || return 1; done; }
holds "scope: the members are in a leaf below alice's manager" in_leaf
kill -TERM "$(ps -o ppid= -p "$(pgrep -o -x -u alice pf-supervisor)" | tr -d ' ')"
wait $!
gone_with "scope"

level=roots
next
as alice "systemd-run --user --quiet --unit=web -p Delegate=yes -p Type=exec penfold run --grace 20 -- sleep $token"
as alice "penfold run -d --name session -- sleep $token" >/dev/null
systemd-run --quiet --unit=web2 -p User=alice -p Type=exec penfold run -- sleep $token
systemd-run --quiet --wait --pipe -p User=alice penfold run -d --unit none --name service -- sleep $((token + 100)) >/dev/null 2>&1
becomes "three sandboxes of alice live" alive 3
expect "a login session sees the detached sandbox" "session running" "$(as alice "penfold ps --format '{{.Names}} {{.State}}' --filter name=session")"
seen() { systemd-run --quiet --wait --pipe -p User=alice penfold ps --filter name=session --format '{{.Names}} {{.State}}' 2>&1; }
expect "so does a service of the system's manager" "session running" "$(seen)"
expect "bob sees none" "" "$(as bob "penfold ps -a -q")"
expect "root lists it with --all-users" "*session*" "$(penfold ps --all-users 2>&1)"
expect "root ends none by name" 3 "$(penfold kill session >/dev/null 2>&1; echo $?)"
expect "alice ends it from a service" 0 "$(systemd-run --quiet --wait --pipe -p User=alice penfold kill session >/dev/null 2>&1; echo $?)"
becomes "two are left" alive 2
as alice systemctl --user stop web
systemctl stop web2
gone_with "the services"
token=$((token + 100))
becomes "the sandbox of a oneshot service ended with its service" gone

# What outlives a logout. The expected state is what the processes say, whatever logind does with them.
level=logout
logged_out() { ! loginctl list-sessions --no-legend | grep -q alice; }
sessions_of_alice_end() {
    local session
    # The session of each ssh client that has ended.
    for session in $(loginctl list-sessions --no-legend | awk '$3 == "alice" {print $1}'); do
        [[ $(loginctl show-session -p State --value "$session") != active ]] || return 1
    done
}
agrees() {
    local members state
    members=$(count)
    state=$(as alice "penfold ps -a --format '{{.State}}' --filter name=$1" 2>&1)
    if ((members)); then [[ $state == running ]]; else [[ $state != *running* ]]; fi
}
for linger in off on; do
    if [[ $linger == on ]]; then loginctl enable-linger alice; fi
    next
    as alice "penfold run -d --unit none --name linger-$linger --grace 20 -- sleep $token" >/out/run 2>&1
    becomes "linger $linger: the sandbox lives" alive 1
    becomes "linger $linger: the session has ended" sessions_of_alice_end
    holds "linger $linger: the sandbox lives on after the logout" alive 1
    holds "linger $linger: after the next login, ps agrees with the processes" agrees "linger-$linger"
    as alice "penfold rm -f linger-$linger" >/dev/null 2>&1
    gone_with "linger $linger: rm -f"
done
# The manager of alice ends with everything in it; what is shown afterwards is true.
next
as alice "systemd-run --user --scope --quiet -p Delegate=yes penfold run -d --name manager -- sleep $token" >/out/run 2>&1
becomes "in the user's manager: the sandbox lives" alive 1
loginctl disable-linger alice
loginctl terminate-user alice
becomes "end of the user's manager: no member is left" gone
becomes "end of the user's manager: no process of penfold is left" unsupervised
becomes "end of the user's manager: ps shows nothing alive" eval '[[ -z $(as alice "penfold ps -q") ]]'
expect "end of the user's manager: the name is free" 0 "$(as alice "penfold run -d --rm --name manager true" >/dev/null 2>&1; echo $?)"
ended
