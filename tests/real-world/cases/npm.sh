# npm passes the signal to the shell of the script, which does not pass it on.
# rows: TERM; *KILL
# title TERM: `npm run dev`: `sleep & sleep` | SIGTERM
# title KILL: `npm run dev`: `sleep & sleep` | SIGKILL
printf '{"scripts": {"dev": "sleep %s & sleep %s"}}' "$TOKEN" "$TOKEN" >package.json
begin npm run --silent dev
await 2 sleep
kill "-$1" $!
wait $! 2>/dev/null
