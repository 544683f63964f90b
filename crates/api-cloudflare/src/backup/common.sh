refuse() {
    \builtin echo "$1" >&2
    \builtin exit 3
}

# Tells, also in a sentence, whether a restore works on a directory: it has the lock of what it has made there. $stage is our own.
is_being_restored() {
    local found lock
    for found in "$1"/.penfold-restore-*/; do
        [[ -d $found && ${found%/} != "$PWD/${stage#./}" ]] && \builtin exec {lock}< "$found" || continue
        if ! \builtin command flock --nonblock --shared "$lock"; then
            \builtin echo "another restore works on ${1:-/}" >&2
            return 0
        fi
        \builtin exec {lock}<&-
    done
    return 1
}

# Locks the working directory, --exclusive or --shared, and then each directory above it, with a lock that others of this kind may share. So
# whoever replaces the content of a directory is alone in it and below it. The locks end with the processes. Programs that look whether a
# directory is in use have its lock for a moment: penfold gc, systemd-tmpfiles. A lock that something else has for longer, as a sandbox that of
# its scratch directory, is no reason to refuse: then what restores make tells. Both fail with a sentence.
hold_here() {
    local lock
    \builtin exec {lock}< . || return
    \builtin command flock --timeout 1 "$1" "$lock" && return
    if \builtin command flock --nonblock --shared "$lock"; then
        \builtin echo "another backup works on $PWD, or something else shares its lock" >&2
        return 1
    fi
    ! is_being_restored "$PWD"
}
hold_above() {
    local above=$PWD lock
    while [ "$above" != / ]; do
        above=${above%/*}
        above=${above:-/}
        [ -r "$above" ] && \builtin exec {lock}< "$above" || continue
        # A restore that has just begun makes its mark in this time.
        \builtin command flock --timeout 0.2 --shared "$lock" || ! is_being_restored "${above%/}" || return
    done
}

attributes=(--xattrs --acls)
[ "$EUID" != 0 ] || attributes+=('--xattrs-include=*')
