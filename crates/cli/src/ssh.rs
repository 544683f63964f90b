//! The verbs on another host, with `--host ssh://HOST`: one ssh for each command.
//!
//! ```text
//!  penfold (near.rs) ── ssh ── sshd ── penfold ssh-end (far.rs)
//!                                        └─ penfold ssh-end -- VERB …
//! ```
//! The near end sends the words of the command line, standard input and signals; the far end sends both outputs and the exit code
//! (`frames.rs`). The far end kills the verb when it hears nothing more, and the death of the verb is the death of the caller.
//!
//! On a terminal there are no frames: ssh has a terminal of its own for that.

pub(crate) mod far;
mod frames;
mod near;
mod queue;

use std::ffi::OsString;
use std::io::IsTerminal as _;

use crate::args::verb::Verb;
use crate::failure::{Failure, FailureKind};
use crate::place::SshHost;

/// The verbs whose command reads standard input.
const READERS: [&str; 4] = ["run", "exec", "sh", "guard"];

/// Runs the verb of this command line on another host; returns its exit code.
pub(crate) fn call(verb: &Verb, host: &SshHost, is_detached: bool) -> Result<u8, Failure> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let streams =
        [std::io::stdin().is_terminal(), std::io::stdout().is_terminal(), std::io::stderr().is_terminal()];
    if streams == [true; 3] {
        return Err(near::on_terminal(host, &words, verb.usage_failure));
    }
    let reads = READERS.contains(&verb.name) && !is_detached || words.iter().any(|word| word == "-");
    let kinds = match verb.usage_failure {
        // After the start, the command may run, or have run.
        FailureKind::NotStarted => {
            near::Kinds { unreachable: FailureKind::NotStarted, lost: FailureKind::Unverified }
        }
        _ => near::Kinds { unreachable: FailureKind::Other, lost: FailureKind::Other },
    };
    near::call(host, words, reads, &kinds)
}
