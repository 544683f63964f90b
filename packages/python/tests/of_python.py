"""Runs the tests of Python itself for ``subprocess``, with ``penfold.Popen`` in the place of ``subprocess.Popen``.

The differences that are expected are listed here, with reasons. Any other failure, and any expected one that does not happen,
is an error. Debian has these tests in the package libpython3-testsuite.
"""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

import penfold

_PREEXEC = "preexec_fn is refused"

#: Tests that fail, and why.
EXPECTED = {
    "test_preexec": _PREEXEC,
    "test_preexec_exception": _PREEXEC,
    "test_preexec_errpipe_does_not_double_close_pipes": _PREEXEC,
    "test_preexec_gc_module_failure": _PREEXEC,
    "test_preexec_fork_failure": _PREEXEC,
    "test_close_fds_after_preexec": _PREEXEC,
    "test_surrogates_error_message": _PREEXEC,
    "test_repr": "starts nothing: a stand-in takes the place of _execute_child",
}

CASES = ("ProcessTestCase", "RunFuncTestCase", "POSIXProcessTestCase", "ContextManagerTests", "CommandTests")


def main() -> int:
    # Before the import: the functions of subprocess look Popen up in their module.
    subprocess.Popen = penfold.Popen  # type: ignore[misc]
    from test import test_subprocess

    loader = unittest.defaultTestLoader
    names = [name for name in CASES if hasattr(test_subprocess, name)]
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(getattr(test_subprocess, name)) for name in names)
    # The tests say much, on purpose.
    with open(os.devnull, "w") as null:
        result = unittest.TextTestRunner(stream=null, verbosity=0).run(suite)
    failures = {str(case).split(" ")[0]: text for case, text in result.failures + result.errors}
    unexpected = sorted(set(failures) - set(EXPECTED))
    vanished = sorted(set(EXPECTED) - set(failures))
    for name in unexpected:
        print(f"{name}:\n{failures[name]}")
    print(f"{result.testsRun} run, {len(failures)} differ: {len(unexpected)} not expected, {len(vanished)} do not differ")
    if vanished:
        print("these were expected to fail:", ", ".join(vanished))
    return 1 if unexpected or vanished else 0


if __name__ == "__main__":
    sys.exit(main())
