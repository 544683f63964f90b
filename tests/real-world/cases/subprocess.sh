# The child is killed, the rest of its tree is not.
# rows: *
# title: `subprocess.run(timeout=1)`: 8 spinners, `setsid`, `nohup … & disown` | time limit
python3 - "$MODE" <<'PYTHON'
import os, subprocess, sys
token = os.environ["TOKEN"]
if sys.argv[1] == "with":
    sys.path.insert(0, os.environ["SOURCES"] + "/packages/python/src")
    os.environ["PENFOLD_BIN"] = os.environ["PENFOLD"]
    import penfold as subprocess
script = f"""
for i in 1 2 3 4 5 6 7 8; do sh -c 'while :; do :; done' {token} & done
setsid sleep {token} & nohup sleep {token} >/dev/null 2>&1 & disown; echo out; wait"""
try:
    subprocess.run(["bash", "-c", script], timeout=1, stdout=subprocess.PIPE)
except subprocess.TimeoutExpired as error:
    print("timed out after", error.timeout, error.output)
PYTHON
