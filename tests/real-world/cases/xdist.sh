# The controller dies, and with it everything that knows of the workers and their children.
# rows: *KILL; TERM
# needs: python
# title KILL: `pytest -n 4`, hanging tests with a child each | SIGKILL to the controller
# title TERM: `pytest -n 4`, hanging tests with a child each | SIGTERM to the controller
cat >test_hangs.py <<PYTHON
import subprocess, pytest
@pytest.mark.parametrize("number", range(4))
def test_hangs(number):
    subprocess.run(["sleep", "$TOKEN"])
PYTHON
begin "$INSTALLED/python/venv/bin/python" -m pytest -q -n 4 -p no:cacheprovider test_hangs.py >said
await 4 sleep
kill "-$1" $!
wait $! 2>/dev/null
