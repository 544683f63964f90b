#!/bin/bash
# service: the units of dist/systemd, installed and run, and services that run penfold. The statements of docs/systemd.md.
# shellcheck source-path=SCRIPTDIR disable=SC2016
. /guest/lib.sh

units=/etc/systemd/system
user_units=/etc/systemd/user
cp /guest/systemd/*.{service,socket,timer} $units/
cp /guest/systemd/user/* $user_units/
install -d -o alice -g alice /home/alice/.local /home/alice/.local/bin /home/alice/.config /home/alice/.config/penfold /home/alice/.config/penfold/run
install -o alice -g alice -m 755 /guest/penfold /home/alice/.local/bin/penfold
install -d /etc/penfold/run
systemctl daemon-reload
loginctl enable-linger alice
becomes "alice's manager runs" systemctl is-active --quiet user@1000.service

api() { curl --silent --show-error --max-time 120 --unix-socket "$1" "http://penfold$2" "${@:3}"; }
active() { systemctl is-active --quiet "$@"; }
inactive() { ! systemctl is-active --quiet "$@"; }
result() { systemctl show -p "$1" --value "$2"; }
level_in() { sed -n 's/.*"level": *"\([a-z]*\)".*/\1/p' "$1" | head -n 1; }
cause_in() { sed -n 's/.*"cause": *"\([a-z_]*\)".*/\1/p' "$1" | head -n 1; }
pid_of() { systemctl show -p MainPID --value "$1"; }
new_pid() { local pid; pid=$(pid_of "$1"); [[ $pid != 0 && $pid != "$2" ]]; }
# program NAME: reads the program of penfold-run@NAME.
program() {
    cat >/etc/penfold/run/"$1"
    chmod 755 /etc/penfold/run/"$1"
}

level=units
for unit in penfold.service penfold.socket penfold-watch.service penfold-gc.service penfold-gc.timer penfold-run@web.service; do
    program web <<<'#!/bin/sh'
    expect "systemd-analyze verify $unit" "" "$(systemd-analyze verify --man=no $units/$unit 2>&1 | grep -E "penfold" || true)"
done
printf '#!/bin/sh\n' | install -o alice -g alice -m 755 /dev/stdin /home/alice/.config/penfold/run/web
for unit in penfold.service penfold-gc.service penfold-gc.timer penfold-run@web.service; do
    expect "systemd-analyze verify of the user unit $unit" "" \
        "$(as alice systemd-analyze verify --user --man=no $user_units/$unit 2>&1 | grep -E "penfold" || true)"
done

level=run
# A program of four members that count their SIGTERMs. Each ends two seconds after the first one, so that a second one would be
# counted.
cat >/run/member.sh <<'MEMBER'
trap 'echo TERM >>/run/terms.$1; [[ -n $until ]] || until=$((SECONDS + 2))' TERM
until=
: >/run/ready.$1
while [[ -z $until ]] || ((SECONDS < until)); do sleep 0.2; done
exit 0
MEMBER
program web <<'PROGRAM'
#!/bin/bash
bash /run/member.sh 1 &
setsid bash /run/member.sh 2 &
(setsid bash /run/member.sh 3 &)
until [[ -e /run/ready.1 && -e /run/ready.2 && -e /run/ready.3 ]]; do sleep 0.1; done
[[ -z $NOTIFY_SOCKET ]] || systemd-notify --ready
exec bash /run/member.sh 4
PROGRAM
terms() { cat /run/terms."$1" 2>/dev/null | wc -l; }
ready() { [[ -e /run/ready.4 ]]; }
none() { ! pgrep -f /run/member.sh >/dev/null; }
for type in exec notify; do
    rm -f /run/ready.* /run/terms.*
    mkdir -p $units/penfold-run@web.service.d
    printf '[Service]\nType=%s\n' $type >$units/penfold-run@web.service.d/type.conf
    systemctl daemon-reload
    expect "Type=$type: it starts" 0 "$(timeout 120 systemctl start penfold-run@web; echo $?)"
    becomes "Type=$type: four members live" ready
    for pid in $(pgrep -f /run/member.sh); do
        holds "Type=$type: a member is in a leaf below the unit" grep -qE 'penfold.*run@web.service/penfold-[0-9a-f]{12}$' "/proc/$pid/cgroup"
    done
    expect "Type=$type: stop" 0 "$(timeout 240 systemctl stop penfold-run@web; echo $?)"
    holds "Type=$type: no member is left" none
    holds "Type=$type: no leaf is left" no_leaf
    for member in 1 2 3 4; do expect "Type=$type: member $member got SIGTERM once" 1 "$(terms $member)"; done
    expect "Type=$type: the unit has not failed" "success inactive" "$(result Result penfold-run@web) $(systemctl is-active penfold-run@web)"
done
rm -rf $units/penfold-run@web.service.d

next
program stubborn <<PROGRAM
#!/bin/bash
trap '' TERM
setsid sleep $token &
(sleep $token &)
sleep $token & sleep $token & wait
PROGRAM
mkdir -p $units/penfold-run@stubborn.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/penfold run --grace 3 --report /run/report.json -- /etc/penfold/run/stubborn\n' >$units/penfold-run@stubborn.service.d/grace.conf
systemctl daemon-reload
systemctl start penfold-run@stubborn
becomes "TERM is ignored: four members live" alive 4
expect "TERM is ignored: stop" 0 "$(timeout 240 systemctl stop penfold-run@stubborn; echo $?)"
gone_with "TERM is ignored"
holds "TERM is ignored: penfold had the time to tell" grep -q stubborn /run/report.json
systemctl reset-failed

next
program dying <<PROGRAM
#!/bin/bash
$(tree)
PROGRAM
systemctl start penfold-run@dying
becomes "SIGKILL of penfold run: five members live" alive $TREE
old=$(pid_of penfold-run@dying)
old_members=$(pgrep -x -f "sleep $token" | tr '\n' ' ')
kill -KILL "$old"
becomes "SIGKILL of penfold run: the unit is started again" new_pid penfold-run@dying "$old"
becomes "SIGKILL of penfold run: five new members live" alive $TREE
none_of_the_old() { for pid in $old_members; do ! grep -qz "$token" "/proc/$pid/cmdline" 2>/dev/null || return 1; done; }
holds "SIGKILL of penfold run: none of the old ones" none_of_the_old
systemctl stop penfold-run@dying
gone_with "SIGKILL of penfold run, then stop"

level=memory
next
cat >/root/eat.py <<'PROGRAM'
import time
held = []
while True:
    held.append(b"x" * 1048576)
    time.sleep(0.001)
PROGRAM
for delegate in yes no; do
    rm -f /run/report.json
    systemd-run --quiet --unit=eater-$delegate -p Delegate=$delegate -p KillMode=mixed -p MemoryMax=64M -p MemorySwapMax=0 -p OOMPolicy=continue \
        penfold run --report /run/report.json -- python3 /root/eat.py
    becomes "MemoryMax, Delegate=$delegate: the unit has ended" inactive eater-$delegate
    expect "MemoryMax, Delegate=$delegate: the cause in the report" oom "$(cause_in /run/report.json)"
    journalctl --sync
    expect "MemoryMax, Delegate=$delegate: the summary says it" "*out of memory*" "$(journalctl -u eater-$delegate --no-pager -o cat)"
    systemctl reset-failed
done

level=detached
next
# Without a scope, a oneshot service ends what it started when its command has exited.
systemd-run --quiet --wait -p Type=oneshot penfold run -d --unit none --name oneshot -- sleep $token >/dev/null 2>&1
becomes "oneshot: no member is left" gone
expect "oneshot: ps agrees" "" "$(penfold ps -q)"
penfold rm -f oneshot >/dev/null 2>&1
next
cat >$units/keep.service <<UNIT
[Service]
Type=oneshot
RemainAfterExit=yes
Delegate=yes
ExecStart=/usr/local/bin/penfold run -d --rm --name keep -- sleep $token
ExecStop=/usr/local/bin/penfold stop keep
UNIT
systemctl daemon-reload
systemctl start keep
becomes "oneshot with RemainAfterExit: it lives" alive 1
holds "oneshot with RemainAfterExit: the unit is active" active keep
expect "oneshot with RemainAfterExit: ps shows it" "keep running" "$(penfold ps --format '{{.Names}} {{.State}}')"
systemctl stop keep
gone_with "oneshot with RemainAfterExit: stop"
expect "oneshot with RemainAfterExit: not failed" success "$(result Result keep)"

level=watch
systemctl start penfold-watch
holds "the unit is active" active penfold-watch
next
systemd-run --quiet --scope -p Delegate=yes penfold run -d --name lost -- bash -c "$(tree)" >/dev/null 2>&1
becomes "five members live" alive $TREE
watcher=$(pid_of penfold-watch)
kill -KILL $(penfolds | grep -vx "$watcher")
becomes "SIGKILL of both supervisors: no member is left, without another command" gone
becomes "SIGKILL of both supervisors: no leaf is left" no_leaf
kill -KILL "$watcher"
becomes "SIGKILL of the watcher: another one runs" new_pid penfold-watch "$watcher"
becomes "the unit is active again" active penfold-watch
systemctl stop penfold-watch
penfold rm -f lost >/dev/null 2>&1
holds "nothing is left" unsupervised

level=server
socket=/run/penfold/api.sock
systemctl start penfold.socket
holds "the server is not started before the first request" inactive penfold.service
next
create() {
    api "$1" /v1/sandboxes -X POST -H 'content-type: application/json' -d "{\"command\":[\"bash\",\"-c\",\"$(tree)\"],\"name\":\"$2\"}"
}
expect "the first request starts it and makes a sandbox" '*"id":*' "$(create $socket served)"
becomes "five members live" alive $TREE
holds "the unit is active" active penfold.service
id=$(penfold ps -q)
members_before=$(pgrep -x -f "sleep $token" | tr '\n' ' ')
same() { [[ $(pgrep -x -f "sleep $token" | tr '\n' ' ') == "$members_before" ]]; }
server=$(pid_of penfold.service)
kill -KILL "$server"
becomes "SIGKILL of the server: another one runs" new_pid penfold.service "$server"
becomes "SIGKILL of the server: it is ready" eval 'api $socket /healthz >/dev/null 2>&1'
expect "SIGKILL of the server: the same sandbox" "*\"$id\"*" "$(api $socket /v1/sandboxes)"
holds "SIGKILL of the server: the same members" same
expect "restart" 0 "$(timeout 240 systemctl restart penfold.service; echo $?)"
holds "restart: the same members" same
expect "stop with a living sandbox" 0 "$(timeout 240 systemctl stop penfold.service penfold.socket 2>/dev/null; echo $?)"
holds "stop: the same members" same
expect "stop: ps shows the sandbox" "$id" "$(penfold ps -q)"
systemctl start penfold.socket
expect "started again: the same sandbox" "*\"$id\"*" "$(api $socket /v1/sandboxes)"
api $socket "/v1/sandboxes/$id" -X DELETE >/out/delete 2>&1
holds "DELETE: no member is left when it has answered" gone
holds "DELETE: no leaf is left" no_leaf
# The server recovers what lost its supervisors, as penfold-watch does.
next
create $socket lost >/dev/null
becomes "lost: five members live" alive $TREE
server=$(pid_of penfold.service)
kill -KILL $(penfolds | grep -vx "$server")
becomes "lost: no member is left" gone
systemctl stop penfold.service penfold.socket
becomes "nothing is left" unsupervised
expect "stopped units have not failed" "" "$(systemctl --failed --no-legend | grep penfold)"

level=user-server
user_socket=/run/user/1000/penfold/api.sock
as alice systemctl --user start penfold.service
becomes "the unit is active" as alice systemctl --user is-active --quiet penfold.service
next
expect "a request makes a sandbox" '*"id":*' "$(as alice "curl --silent --max-time 120 --unix-socket $user_socket http://penfold/v1/sandboxes -X POST -H 'content-type: application/json' -d '{\"command\":[\"sleep\",\"$token\"]}'")"
becomes "its member lives" alive 1
holds "its member belongs to alice" pgrep -x -u alice -f "sleep $token"
holds "its member is in a leaf" grep -qE '/user@1000.service/.*/penfold-[0-9a-f]{12}$' "/proc/$(pgrep -x -f "sleep $token")/cgroup"
as alice systemctl --user stop penfold.service
holds "stop: the member lives" alive 1
expect "the user's command line ends it" 0 "$(as alice 'penfold kill $(penfold ps -q)' >/dev/null 2>&1; echo $?)"
gone_with "kill"
as alice systemctl --user start penfold-run@web.service
becomes "penfold-run@ of a user has run" eval '[[ $(as alice systemctl --user show -p Result --value penfold-run@web) == success ]]'

level=gc
next
penfold run -d --name old -- sleep $token >/dev/null
becomes "the member lives" alive 1
kill -KILL $(penfolds)
within "$DEADLINE" unsupervised
systemctl start penfold-gc.service
expect "penfold-gc.service: success" success "$(result Result penfold-gc.service)"
gone_with "penfold-gc.service"
systemctl start penfold-gc.timer
holds "penfold-gc.timer: it is active" active penfold-gc.timer
expect "penfold-gc.timer: it has a next time" "*penfold-gc.timer*" "$(systemctl list-timers --all --no-legend)"
as alice "penfold run -d --name old -- sleep $token" >/dev/null 2>&1
becomes "of alice: the member lives" alive 1
kill -KILL $(penfolds)
within "$DEADLINE" unsupervised
expect "penfold-gc.service of alice" 0 "$(as alice systemctl --user start penfold-gc.service >/dev/null 2>&1; echo $?)"
gone_with "penfold-gc.service of alice"
ended
