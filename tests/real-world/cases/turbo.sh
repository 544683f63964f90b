# A runner of several programs that cannot clean up when it is killed.
# rows: KILL
# needs: agents
# title: `turbo run dev`, two packages | SIGKILL
export TURBO_TELEMETRY_DISABLED=1 DO_NOT_TRACK=1
mkdir -p packages/a packages/b
printf '{"name": "root", "private": true, "packageManager": "npm@11.0.0", "workspaces": ["packages/*"]}' >package.json
printf '{"tasks": {"dev": {"persistent": true, "cache": false}}}' >turbo.json
printf '{"name": "root", "lockfileVersion": 3, "packages": {}}' >package-lock.json
for name in a b; do printf '{"name": "%s", "scripts": {"dev": "sleep %s"}}' "$name" "$TOKEN" >"packages/$name/package.json"; done
begin "$INSTALLED/agents/node_modules/.bin/turbo" run dev --no-daemon --ui stream >said
await 2 sleep
kill -KILL $!
wait $! 2>/dev/null
