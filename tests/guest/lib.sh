# The checks of a guest. The test of a host kind sources this file; it runs in the guest, as root, under systemd.
#
# A check is one line: result, level, name, and what was expected and seen. Each check waits for a condition with a deadline
# that an emulated, loaded machine keeps. Judges here read /proc and the cgroup file system, and never ask penfold.
# shellcheck shell=bash disable=SC2034
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
DEADLINE=120
level=-
token=7000
mkdir -p /out
for program in penfold testkit; do
    [[ ! -e /guest/$program ]] || install -m 755 /guest/$program /usr/local/bin/$program
done

# The sign of life that `boot` waits for.
echo up >/dev/ttyS1

# record RESULT NAME DETAIL: writes one line, at once, since the guest may hang later.
record() {
    local line
    line=$(printf '%s\t%s\t%s\t%s' "$1" "$level" "$2" "${3//[$'\t\n\r']/ }")
    echo "$line" >>/out/checks
    echo "$line" >/dev/ttyS1
}

# expect NAME PATTERN SEEN: the text must match the glob pattern.
expect() {
    # shellcheck disable=SC2053
    if [[ $3 == $2 ]]; then record ok "$1" ""; else record FAIL "$1" "expected \`$2\`, saw \`${3:0:600}\`"; fi
}

# within SECONDS COMMAND...: waits until the command succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

# becomes NAME COMMAND...: the command must succeed within the deadline. A failure shows the values of the look.
becomes() {
    local name=$1
    shift
    if within "$DEADLINE" "$@"; then
        record ok "$name" ""
    else
        record FAIL "$name" "not within ${DEADLINE}s: $*; $(look)"
        return 1
    fi
}

# holds NAME COMMAND...: the command must succeed now.
holds() {
    local name=$1
    shift
    if "$@"; then
        record ok "$name" ""
    else
        record FAIL "$name" "does not hold: $*; $(look)"
        return 1
    fi
}

skip() { record skip "$1" "$2"; }

# A new number for a trial. Its members are `sleep NUMBER`.
next() { token=$((token + 1)); }

# count: the number of members of the trial: processes whose whole command line is `sleep NUMBER`.
count() { pgrep -x -f "sleep $token" | wc -l; }
alive() { [[ $(count) == "$1" ]]; }
gone() { alive 0; }
# The leaves of sandboxes on this host, and the processes in them.
leaves() { find /sys/fs/cgroup -type d -regextype sed -regex '.*/penfold-\([0-9a-f]\{12\}\|exec-[0-9]*\)' 2>/dev/null; }
no_leaf() { [[ -z $(leaves) ]]; }
# penfolds: the pids of penfold's processes.
penfolds() { pgrep -x penfold; pgrep -x pf-supervisor; }
unsupervised() { [[ -z $(penfolds) ]]; }
look() {
    echo "members: $(pgrep -a -f "[${token:0:1}]${token:1}" | tr '\n' ';'); leaves: $(leaves | tr '\n' ' '); penfold: $(penfolds | tr '\n' ' ')"
}
# sweep: ends what a failed check has left, so that the next checks see their own trees only.
sweep() {
    local pids
    mapfile -t pids < <(penfolds; pgrep -f "[${token:0:1}]${token:1}")
    ((${#pids[@]} == 0)) || kill -KILL "${pids[@]}"
}

# tree: the shell text of a tree of five members: of other sessions, orphans, a child and the leader.
tree() { echo "setsid sleep $token & (sleep $token &) ; (setsid sh -c 'sleep $token & wait' &) ; sleep $token & exec sleep $token"; }
TREE=5

# gone_with NAME: no member, no leaf and no process of penfold is left.
gone_with() {
    becomes "$1: no member is left" gone
    becomes "$1: no leaf is left" no_leaf
    becomes "$1: no process of penfold is left" unsupervised
}

child_of() { pgrep -P "$1" -x "$2"; }
# as USER COMMAND: in an ssh session of the user.
as() {
    local user=$1
    shift
    ssh -o ConnectTimeout=60 "$user@127.0.0.1" "$*"
}
parent_is() { [[ $(ps -o ppid= -p "$1" | tr -d ' ') == "$2" ]]; }
same_leaf() { [[ $(sed 's/^0:://' "/proc/$1/cgroup") == "$2" ]]; }

# ended: no more checks come. Then the guest is switched off.
ended() {
    dmesg >/out/dmesg 2>&1
    journalctl --boot --no-pager >/out/journal 2>&1
    sync
    tar -cf /dev/vdc -C / out 2>/dev/null
    sync
    echo end >/dev/ttyS1
    sync
    systemctl poweroff --force --force
}

# again: boots once more, after a proper shutdown. The test finds out which boot it is.
again() {
    sync
    echo reboot >/dev/ttyS1
    systemctl reboot
    sleep infinity
}
