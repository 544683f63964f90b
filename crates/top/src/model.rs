//! What the view shows, and who finds it.

use penfold_control::{SandboxUsage, StopResult};

/// Finds sandboxes. All texts are one line each, without characters that change the terminal.
pub trait Source: Send {
    /// Lists the living sandboxes, the newest first.
    ///
    /// # Errors
    /// A sentence, when the sandboxes cannot be listed.
    fn list(&mut self) -> Result<Vec<Sandbox>, String>;

    /// Finds a sandbox that the last list no longer has; `None` if nothing is known of it.
    fn ended(&mut self, id: &str) -> Option<Sandbox>;

    /// Finds what only rows on the screen show. The sandbox is of the last list.
    fn detail(&mut self, id: &str) -> Detail;

    /// Draws the processes of a sandbox, a line each.
    ///
    /// # Errors
    /// A sentence, when they cannot be listed.
    fn tree(&mut self, id: &str) -> Result<Vec<String>, String>;

    /// Reads the last lines of the output of a sandbox.
    ///
    /// # Errors
    /// A sentence, when there is no log.
    fn log(&mut self, id: &str) -> Result<Vec<String>, String>;
}

/// Ends sandboxes.
pub trait Actions: Send + Sync {
    /// Ends exactly this sandbox and waits until that is verified, or the survivors are known.
    ///
    /// # Errors
    /// A sentence, when the sandbox cannot be found.
    fn end(&self, id: &str, ending: Ending) -> Result<StopResult, String>;
}

/// How a sandbox is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Politely at first.
    Stop,
    /// At once.
    Kill,
}

/// The colour of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusColour {
    /// It runs.
    Running,
    /// It begins or ends.
    Passing,
    /// Something is wrong.
    Wrong,
    /// It has ended.
    Ended,
}

/// A sandbox in the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    /// The id.
    pub id: String,
    /// The name.
    pub name: Option<String>,
    /// The status in words.
    pub status: String,
    /// The colour of the status.
    pub colour: StatusColour,
    /// The use of CPU, in percent of one CPU; `None` before the second look.
    pub cpu_percent: Option<f64>,
    /// The numbers; `None` if it has ended.
    pub usage: Option<SandboxUsage>,
    /// The time until the lease ends, or a dash.
    pub lease: String,
    /// The command.
    pub command: String,
}

impl Sandbox {
    /// Returns the name, or else the id.
    pub(crate) fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }
}

/// What only rows on the screen show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detail {
    /// The ports on which members listen.
    pub ports: String,
    /// The last line of the output.
    pub last_line: String,
}

/// What fills the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// The table.
    Table,
    /// The processes of this sandbox.
    Tree(String),
    /// The log of this sandbox.
    Log(String),
}

impl Page {
    /// Returns the sandbox of a page that shows a single one.
    pub(crate) fn sandbox(&self) -> Option<&str> {
        match self {
            Page::Table => None,
            Page::Tree(id) | Page::Log(id) => Some(id),
        }
    }
}
