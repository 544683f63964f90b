# lib.sh FILE ARGUMENTS…: the words that a case may use, and then the case.
#
# $TOKEN is the number for arguments, $DIRECTORY the working directory, $INSTALLED has the programs. `sandbox COMMAND…` runs the
# command, with penfold if $MODE is `with`; `${server_penfold[@]}` are the words for an MCP server.
set -uo pipefail
real_world=$SOURCES/tests/real-world
penfold=()
server_penfold=()
if [[ $MODE == with ]]; then
    penfold=("$PENFOLD" --root "$DIRECTORY/root" run -q --grace 1s --)
    server_penfold=("$PENFOLD" --root "$DIRECTORY/root" run -q --on-stdin-close stop --grace 1s --)
fi
sandbox() { "${penfold[@]}" "$@"; }
# In the background, as a process that can be killed: $!.
begin() { "${penfold[@]}" "$@" & }
# await N PROGRAM: waits until N processes of this program have the number.
await() { "$real_world/scan" "$TOKEN" --await "$1" "$2"; }

file=$1
shift
source "$file"
