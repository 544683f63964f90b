refuse() {
    \builtin echo "$1" >&2
    \builtin exit 3
}

# Locks the working directory, and each directory above it with a lock that others of this kind may share. So whoever replaces the content
# of a directory is alone in it and below it. The locks end with the processes. A program
# that looks whether a directory is in use may hold its lock for a moment: penfold gc, systemd-tmpfiles.
hold() {
    local above=$PWD lock
    \builtin exec {lock}< . && \builtin command flock --timeout 1 "$1" "$lock" || refuse "another backup or restore works on $PWD"
    while [ "$above" != / ]; do
        above=${above%/*}
        above=${above:-/}
        [ -r "$above" ] || continue
        \builtin exec {lock}< "$above" && \builtin command flock --timeout 1 --shared "$lock" ||
            refuse "another restore works on $above"
    done
}

attributes=(--xattrs --acls)
[ "$EUID" != 0 ] || attributes+=('--xattrs-include=*')
