//! Who requested the end of a sandbox.

use serde::{Deserialize, Serialize};

/// The process or key that requested the end of a sandbox. The first request counts.
///
/// A pid alone is the owner's, whose death ended the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requester {
    /// The verb of the penfold command: `stop`, `kill`, `rm`, `gc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verb: Option<String>,
    /// The number of the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The key of the terminal that sent the signal: `Ctrl-C`, `Ctrl-\`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The pid, in penfold's pid namespace; `None` for the kernel, and for a process outside of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The command line, shortened, if readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The longest verb that is believed.
const LONGEST_VERB: usize = 16;

impl Requester {
    /// Returns the requester of a client's request with this verb.
    #[must_use]
    pub fn of_verb(verb: &str) -> Requester {
        Requester { verb: Some(verb.to_owned()), ..Requester::default() }
    }

    /// Returns this process, as the requester with this verb.
    #[must_use]
    pub fn this(verb: &str) -> Requester {
        let pid = rustix::process::getpid();
        let mut proc = penfold_process::ProcFs::open().ok();
        Requester {
            pid: Some(pid.as_raw_nonzero().get()),
            uid: Some(rustix::process::getuid().as_raw()),
            command: proc.as_mut().and_then(|proc| proc.command_line(pid)),
            ..Requester::of_verb(verb)
        }
    }

    /// Returns the verb if it looks like one: it comes from another process.
    pub fn plain_verb(&self) -> Option<&str> {
        let is_plain = |verb: &&str| {
            (1..=LONGEST_VERB).contains(&verb.len()) && verb.bytes().all(|byte| byte.is_ascii_lowercase())
        };
        self.verb.as_deref().filter(is_plain)
    }
}
