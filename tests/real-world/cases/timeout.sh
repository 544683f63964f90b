# `timeout -k` sends SIGKILL only if its child is still there after SIGTERM, and only to its process group.
# rows: *
# title: `timeout -k 1 1 sh -c 'setsid sleep & sleep & wait'` | time limit
sandbox timeout -k 1 1 sh -c "setsid sleep $TOKEN & (trap '' TERM; exec sleep $TOKEN) & echo out; wait" >out.txt
code=$?
cat out.txt
exit $code
