"""The end of a command: what the report means for the caller."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional

from ._errors import LeakError, NotVerified, _Ended
from ._options import Options
from ._report import Report


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a command."""

    report: Report
    returncode: int
    #: What the first ``wait()`` raises.
    error: Optional[_Ended]


def report_of(data: Dict[str, Any], killed: bool) -> Report:
    """Makes the report. ``killed`` tells whether the caller has killed penfold."""
    if killed and data.get("cause") == "owner":
        # The supervisor saw the death of `penfold run`, and not who killed it.
        data = {**data, "cause": "kill"}
    return Report.of(data)


def end_of(data: Dict[str, Any], returncode: int, cmd: Any, options: Options, killed: bool) -> End:
    """Judges the report. ``returncode`` is that of penfold."""
    report = report_of(data, killed)
    if not report.verified:
        if report.exit_signal is not None:
            returncode = -report.exit_signal
        elif report.exit_code is not None:
            returncode = report.exit_code
        left = f": {list(report.survivors)}" if report.survivors else ""
        message = f"{cmd!r} has ended, but penfold could not verify that nothing of it is left{left}"
        return End(report, returncode, NotVerified(message, returncode, cmd, report))
    if options.fail_on_leak and returncode == 0 and report.strays:
        names = ", ".join(f"{process.name} (pid {process.pid})" for process in report.strays)
        message = f"{cmd!r} exited with 0 but left {names}; penfold ended them"
        return End(report, returncode, LeakError(message, returncode, cmd, report))
    return End(report, returncode, None)
