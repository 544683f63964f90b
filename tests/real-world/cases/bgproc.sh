# A process manager for agents.
# rows: stop
# needs: fast
# title: `bgproc stop`: `sh -c 'setsid sleep & sleep'` | stop
export BGPROC_DATA_DIR=$DIRECTORY/bgproc
bgproc=$INSTALLED/fast/node_modules/.bin/bgproc
"$bgproc" start -n "app-$TOKEN" -- "${penfold[@]}" sh -c "setsid sleep $TOKEN & sleep $TOKEN" >said
await 2 sleep
"$bgproc" stop "app-$TOKEN" >said
