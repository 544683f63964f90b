# A runner of several programs that cannot clean up when it is killed.
# rows: *KILL
# needs: fast
# title: `concurrently 'npm run a' 'npm run b'` | SIGKILL
printf '{"scripts": {"a": "sleep %s", "b": "setsid sleep %s"}}' "$TOKEN" "$TOKEN" >package.json
begin "$INSTALLED/fast/node_modules/.bin/concurrently" "npm run a" "npm run b" >said
await 2 sleep
kill -KILL $!
wait $! 2>/dev/null
