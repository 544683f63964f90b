# The tree is found by parents: an orphan is in none.
# Without `exec`, the shell would end by the signal or by the end of its child, whichever comes first.
# rows: *
# needs: fast
# title: `tree-kill`: `sh -c '(sleep &); exec sleep'` | SIGTERM to the tree
cat >kill.cjs <<JS
const { spawn } = require("child_process");
const [command, ...args] = process.argv.slice(2);
const child = spawn(command, args, { stdio: "inherit" });
child.on("exit", (code, signal) => console.log(code, signal));
process.on("SIGUSR2", () => require("$INSTALLED/fast/node_modules/tree-kill")(child.pid, "SIGTERM"));
JS
node kill.cjs "${penfold[@]}" sh -c "(sleep $TOKEN &); exec sleep $TOKEN" &
await 2 sleep
kill -USR2 $!
wait $!
