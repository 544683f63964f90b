#!/usr/bin/env bash
# For self-hosted runners: ends what a job has left on the host, and names it in the log of the job. In the runner's `.env`:
#     ACTIONS_RUNNER_HOOK_JOB_COMPLETED=/opt/penfold/job-completed.sh
# The runner gives all processes of a job one value of RUNNER_TRACKING_ID; processes of other jobs have another one. Needs
# penfold in the runner's PATH, or its path in PENFOLD. Fails, and with it the job, if something is still there.
set -uo pipefail
penfold=${PENFOLD:-penfold}
command -v "$penfold" >/dev/null || {
    echo "::warning title=penfold::there is no penfold in the PATH of this runner; nothing was cleaned up"
    exit 0
}

code=0
if [[ -n ${RUNNER_TRACKING_ID:-} && $RUNNER_TRACKING_ID != 0 ]]; then
    mark=RUNNER_TRACKING_ID=$RUNNER_TRACKING_ID
    # The runner and this script carry the mark, too; `--quiet` does not tell that they are left out.
    left=$("$penfold" --quiet reap -n --env "$mark")
    if [[ -n $left ]]; then
        # The lines of one annotation are joined by %0A.
        text=${left//'%'/%25}
        echo "::warning title=the job left processes::${text//$'\n'/%0A}"
    fi
    # Also without a finding: the look may have missed what was being forked.
    "$penfold" --quiet reap --grace 5s --env "$mark" || code=$?
fi
if ((code != 0)); then
    echo "::error title=penfold::not everything that the job left is gone, see below"
    "$penfold" doctor
fi
exit "$code"
