# An archive has its name once it is whole. `words` has what the request asks for, `ignored` the paths that git ignores.
[ -L "$PENFOLD_BACKUP_ARCHIVE" ] || { [ -e "$PENFOLD_BACKUP_ARCHIVE" ] && [ ! -f "$PENFOLD_BACKUP_ARCHIVE" ]; } &&
    refuse "$PENFOLD_BACKUP_ARCHIVE is there, and no plain file"
\builtin cd -P -- "$PENFOLD_BACKUP_DIR" || \builtin exit
hold_here --shared && hold_above || \builtin exit
\builtin command mkdir -p -- "${PENFOLD_BACKUP_ARCHIVE%/*}/" || \builtin exit
(\builtin set -C && \builtin : > "$PENFOLD_BACKUP_STAGE") || \builtin exit
# The archive of before is no part of the new one.
before=$(\builtin cd -P -- "${PENFOLD_BACKUP_ARCHIVE%/*}/" && \builtin pwd)/${PENFOLD_BACKUP_ARCHIVE##*/}
[[ $before == "${PWD%/}"/* ]] && before=./${before#"${PWD%/}/"} || before=
# tar exits with 1 if a file has changed while it was read.
\builtin command tar --create --sparse "${attributes[@]}" --file "$PENFOLD_BACKUP_STAGE" "${words[@]}" --anchored --no-wildcards \
    ${before:+"--exclude=$before"} --exclude-from <(\builtin printf %s "${ignored:+$ignored
}") . || [ $? = 1 ] &&
    size=$(\builtin command stat -c %s -- "$PENFOLD_BACKUP_STAGE") &&
    \builtin command mv -T -- "$PENFOLD_BACKUP_STAGE" "$PENFOLD_BACKUP_ARCHIVE" && \builtin printf %s "$size"
