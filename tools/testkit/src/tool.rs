//! The tool under test and its command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::OnceLock;

/// A command with a place for the tree's own command.
#[derive(Debug, Clone)]
pub struct Tool {
    arguments: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) user: Option<u32>,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) tree_options: Vec<OsString>,
    pub(crate) detaches: bool,
}

impl Tool {
    /// Creates a tool from its arguments. An argument `{cmd}` is replaced by the words of the tree's command. Inside a
    /// longer argument, `{cmd}` is replaced by the same words with spaces between. Without `{cmd}`, the command is
    /// appended.
    pub fn new(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Tool {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Tool {
            arguments,
            environment: Vec::new(),
            user: None,
            cgroup: None,
            tree_options: Vec::new(),
            detaches: false,
        }
    }

    /// Sets a variable for the tool.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Tool {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// Runs the tool as this user and group, without supplementary groups; only root can.
    #[must_use]
    pub fn user(mut self, user: u32) -> Tool {
        self.user = Some(user);
        self
    }

    /// Starts the tool in this cgroup, a directory.
    #[must_use]
    pub fn cgroup(mut self, cgroup: impl Into<PathBuf>) -> Tool {
        self.cgroup = Some(cgroup.into());
        self
    }

    /// Adds options to the tree's own command, such as `-n 50` or `--path DIR`.
    #[must_use]
    pub fn tree_options(mut self, options: impl IntoIterator<Item = impl Into<OsString>>) -> Tool {
        self.tree_options.extend(options.into_iter().map(Into::into));
        self
    }

    /// Declares that the tool exits with 0 once the tree's command runs, and the tree continues without the tool.
    #[must_use]
    pub fn detaches(mut self) -> Tool {
        self.detaches = true;
        self
    }

    /// Returns the command line of the tool around this command.
    pub fn words(&self, command: &[OsString]) -> Vec<OsString> {
        let joined = command.join(OsStr::new(" ")).to_string_lossy().into_owned();
        let mut words = Vec::new();
        let mut placed = false;
        for argument in &self.arguments {
            let text = argument.to_string_lossy();
            if text == "{cmd}" {
                words.extend_from_slice(command);
                placed = true;
            } else if text.contains("{cmd}") {
                words.push(text.replace("{cmd}", &joined).into());
                placed = true;
            } else {
                words.push(argument.clone());
            }
        }
        if !placed {
            words.extend_from_slice(command);
        }
        words
    }
}

/// No `testkit` program exists to start trees with.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot find the program `testkit` beside `{}`; `penfold_testkit::program` tells how cargo builds it",
    .0.display()
)]
pub struct NoTestkit(PathBuf);

/// The path of `testkit`, if the running program has declared itself.
static OWN: OnceLock<PathBuf> = OnceLock::new();

/// Makes [`binary`] return the running program: `testkit` itself calls this, whatever the name of its file is.
pub fn use_own_binary() {
    if let Ok(path) = std::env::current_exe() {
        OWN.get_or_init(|| path);
    }
}

/// Returns the `testkit` program: the running program if it has declared itself, or else the one named by
/// `TESTKIT_BIN`, or else the program or example `testkit` that cargo put beside the running test.
///
/// A library otherwise reads no variables, but a test has no other place to set this path once.
///
/// # Errors
/// When no such program exists; nothing is built.
pub fn binary() -> Result<PathBuf, NoTestkit> {
    if let Some(path) = OWN.get() {
        return Ok(path.clone());
    }
    if let Some(path) = std::env::var_os("TESTKIT_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().map_err(|_| NoTestkit(PathBuf::from("/proc/self/exe")))?;
    own.ancestors()
        .skip(1)
        .take(3)
        .flat_map(|directory| [directory.join("testkit"), directory.join("examples/testkit")])
        .find(|path| path.is_file())
        .ok_or(NoTestkit(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_placed_or_appended() {
        let command = [OsString::from("a"), OsString::from("b")];
        assert_eq!(Tool::new(["t", "{cmd}", "x"]).words(&command), ["t", "a", "b", "x"]);
        assert_eq!(Tool::new(["sh", "-c", "{cmd}; true"]).words(&command), ["sh", "-c", "a b; true"]);
        assert_eq!(Tool::new(["t"]).words(&command), ["t", "a", "b"]);
    }
}
