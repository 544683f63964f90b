# Claude Code runs hooks also without a key, by the program that `penfold agent install claude` sets.
# rows: end
# needs: agents
# title: `claude -p`: a hook that starts a daemon; `agent install claude --project` | end of the hook
export DISABLE_AUTOUPDATER=1 DISABLE_TELEMETRY=1
git init --quiet .
mkdir .claude bin
printf '{"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "(setsid sleep %s >said 2>&1 &); echo ran >>ran"}]}]}}' \
    "$TOKEN" >.claude/settings.json
if [[ $MODE == with ]]; then
    # `install` makes a link beside the program.
    cp "$PENFOLD" bin/penfold
    bin/penfold agent install claude --project >diff
fi
"$INSTALLED/agents/node_modules/.bin/claude" -p "say nothing"
code=$?
cat ran
exit $code
