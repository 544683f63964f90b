# An MCP server that is no simple process, and the client of a published SDK.
# rows: *node deaf close; node job close; node daemon close; node deaf killed; node job killed; *node daemon killed; python deaf close; python job close; python daemon close; python deaf killed; python job killed; python daemon killed
# needs: fast
# needs: python
# title node deaf close: npm MCP client: `sh -c 'node server; true'`, deaf to the end of its input | close
# title node job close: npm MCP client: `sh -c 'sleep & exec node server'` | close
# title node daemon close: npm MCP client: `sh -c 'setsid sleep & exec node server'` | close
# title node deaf killed: npm MCP client: `sh -c 'node server; true'`, deaf to the end of its input | SIGKILL
# title node job killed: npm MCP client: `sh -c 'sleep & exec node server'` | SIGKILL
# title node daemon killed: npm MCP client: `sh -c 'setsid sleep & exec node server'` | SIGKILL
# title python deaf close: PyPI MCP client: `sh -c 'node server; true'`, deaf to the end of its input | close
# title python job close: PyPI MCP client: `sh -c 'sleep & exec node server'` | close
# title python daemon close: PyPI MCP client: `sh -c 'setsid sleep & exec node server'` | close
# title python deaf killed: PyPI MCP client: `sh -c 'node server; true'`, deaf to the end of its input | SIGKILL
# title python job killed: PyPI MCP client: `sh -c 'sleep & exec node server'` | SIGKILL
# title python daemon killed: PyPI MCP client: `sh -c 'setsid sleep & exec node server'` | SIGKILL
server="node $INSTALLED/fast/server.mjs $TOKEN"
case $2 in
    deaf) script="$server deaf; true" ;;
    job) script="sleep $TOKEN & exec $server" ;;
    daemon) script="setsid sleep $TOKEN & exec $server" ;;
esac
case $1 in
    node) client=(node "$INSTALLED/fast/client.mjs") separator=(--) ;;
    python) client=("$INSTALLED/python/venv/bin/python" "$INSTALLED/python/client.py") separator=() ;;
esac
command=("${separator[@]}" "${server_penfold[@]}" sh -c "$script")
if [[ $3 == close ]]; then
    "${client[@]}" close "${command[@]}"
else
    "${client[@]}" hold "${command[@]}" >said &
    client=$!
    await 1 node
    until grep -q connected said; do sleep 0.02; done
    kill -KILL "$client"
    wait "$client" 2>/dev/null
fi
