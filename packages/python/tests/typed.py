"""Uses the package as its types say: for mypy alone, which `pyproject.toml` points here."""

from __future__ import annotations

import subprocess
from typing import Optional

import penfold

text: "subprocess.Popen[str]" = penfold.Popen(["true"], text=True)
data: "penfold.Popen[bytes]" = penfold.Popen(["true"], stdout=penfold.PIPE, grace=1.5)
done: "subprocess.CompletedProcess[str]" = penfold.run("true", shell=True, encoding="utf-8", timeout=5)
raw: "penfold.CompletedProcess[bytes]" = penfold.run([b"true"], memory="2G")
code: int = penfold.call(["true"])


def strays(of: "penfold.Popen[str]") -> "list[str]":
    report: Optional[penfold.Report] = of.report
    return [] if report is None else [process.name for process in report.strays if process.stray]


async def main() -> bytes:
    process: penfold.Process = await penfold.create_subprocess_exec("true", stdout=penfold.PIPE)
    out, _ = await process.communicate(b"")
    try:
        await process.wait()
    except penfold.NotVerified as error:
        assert error.report is not None and not error.report.verified
    return bytes(out)
