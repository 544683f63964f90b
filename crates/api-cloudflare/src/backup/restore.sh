# The old content is moved aside once the archive is unpacked beside it, and moved back if something of it or of the new content cannot be
# moved. All of that is relative to the directory, whatever becomes of its path.
[ -f "$PENFOLD_BACKUP_ARCHIVE" ] || refuse "$PENFOLD_BACKUP_ARCHIVE is no plain file"
made=$PENFOLD_BACKUP_DIR
[ -d "$made" ] && made=
\builtin command mkdir -p -- "$PENFOLD_BACKUP_DIR" && \builtin cd -P -- "$PENFOLD_BACKUP_DIR" || \builtin exit
stage=./${PENFOLD_BACKUP_STAGE##*/}
undo() {
    \builtin command rm -rf --one-file-system -- "$stage"
    [ -z "$made" ] || \builtin command rmdir -- "$made"
    \builtin exit 2
}
hold_here --exclusive || undo
\builtin command mkdir -- "$stage" && \builtin exec {own}< "$stage" && \builtin command flock --nonblock "$own" || undo
# Without the lock of the directory, two restores may have begun at once.
hold_above && ! is_being_restored "$PWD" || undo
# tar recognises all formats but lz4.
words=()
read -r -a begin < <(\builtin command od -A n -t x1 -N 4 -- "$PENFOLD_BACKUP_ARCHIVE" 2> /dev/null)
[ "${begin[*]}" != "04 22 4d 18" ] || words=(--use-compress-program=lz4)
\builtin command mkdir -- "$stage"/{new,old} || undo
# The last line says whether the archive has its end, which tar itself does not ask for.
ends=$(
    \builtin set -o pipefail
    LC_ALL=C \builtin command tar --extract --verbose --block-number --preserve-permissions "${attributes[@]}" "${words[@]}" \
        --file "$PENFOLD_BACKUP_ARCHIVE" -C "$stage/new" | \builtin command tail -n 2
) || undo
last=${ends##*$'\n'}
if [[ $ends == "$last" || ! $last =~ ^block\ [0-9]+:\ '** Block of NULs **'$ ]]; then
    \builtin echo "$PENFOLD_BACKUP_ARCHIVE is empty, or was cut" >&2
    undo
fi
move() {
    \builtin command find "$1" -mindepth 1 -maxdepth 1 ! -name "${stage#./}" -exec mv -n -t "$2" -- {} +
}
is_aside=
move . "$stage/old" && is_aside=1
if [ -z "$is_aside" ] || ! move "$stage/new" .; then
    [ -z "$is_aside" ] || move . "$stage/new" 2> /dev/null
    move "$stage/old" . && undo
    refuse "the old content is in $PENFOLD_BACKUP_STAGE"
fi
\builtin command rm -rf --one-file-system -- "$stage" ||
    refuse "the archive is restored; a part of the old content is in $PENFOLD_BACKUP_STAGE"
