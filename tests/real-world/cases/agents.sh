# Coding agents without a key and with an empty home: they start each MCP server to ask for its health, and end.
# rows: claude; gemini; opencode
# needs: fast
# needs: agents
# title claude: `claude mcp list` with three servers | close
# title gemini: `gemini mcp list` with three servers | close
# title opencode: `opencode mcp list` with three servers | close
bin=$INSTALLED/agents/node_modules/.bin
export DISABLE_AUTOUPDATER=1 DISABLE_TELEMETRY=1 OPENCODE_DISABLE_AUTOUPDATE=1 GEMINI_CLI_TRUST_WORKSPACE=true
server="node $INSTALLED/fast/server.mjs $TOKEN"
scripts=("$server deaf; true" "sleep $TOKEN & exec $server" "setsid sleep $TOKEN & exec $server")
entry() { if [[ $1 == list ]]; then printf '{"type": "local", "command": ["sh", "-c", "%s"]}' "$2"; else printf '{"command": "sh", "args": ["-c", "%s"]}' "$2"; fi; }
settings() {
    printf '{"%s": {"deaf": %s, "job": %s, "daemon": %s}}\n' "$1" \
        "$(entry "$2" "${scripts[0]}")" "$(entry "$2" "${scripts[1]}")" "$(entry "$2" "${scripts[2]}")"
}
case $1 in
    claude) file=$HOME/.claude.json; settings mcpServers words >"$file" ;;
    gemini) mkdir -p "$HOME/.gemini" && file=$HOME/.gemini/settings.json; settings mcpServers words >"$file" ;;
    opencode) file=opencode.json; settings mcp list >"$file" ;;
esac
[[ $MODE == without ]] || "$PENFOLD" agent wrap "$file" >said
export XDG_RUNTIME_DIR=$DIRECTORY/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
"$bin/$1" mcp list >listed 2>&1
code=$?
cat listed >&2
echo "connected: $(grep -ciE '(✓|✔|●).*connected|connected$' listed)"
exit $code
