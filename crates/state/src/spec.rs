//! The specification of a sandbox: the command, its surroundings, and how it ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use penfold_cgroup::Limits;
use penfold_resource::PlannedResource;
use penfold_teardown::SpareRule;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::confinement::{Identity, Ipc, Jail, Profile};
use crate::event_log::EventLog;
use crate::id::Id;
use crate::launch::LaunchSource;
use crate::life::{Life, OnFailure};
use crate::name_text;
use crate::names::NameClaim;
use crate::scratch::ScratchSpec;
use crate::wire::Size;

/// The requested containment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Contain {
    /// The strongest level that the host offers without changing what the command sees.
    #[default]
    Auto,
    /// A cgroup of the sandbox's own, or an error.
    Cgroup,
    /// A pid namespace of the sandbox's own, or an error.
    Pidns,
    /// The descendants of a subreaper only.
    Subreaper,
}

/// The action when the owner of a sandbox dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnerExit {
    /// The sandbox is killed.
    #[default]
    Kill,
    /// The sandbox is stopped, with its grace.
    Stop,
    /// The sandbox continues until it ends by itself.
    Keep,
}

/// The action when the standard input of a foreground sandbox hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinClose {
    /// The command has half of the grace to end by itself; then the sandbox is stopped, with the other half.
    Stop,
    /// The sandbox is killed.
    Kill,
}

/// The specification of a new sandbox.
#[derive(Debug)]
pub struct Spec {
    /// The id.
    pub id: Id,
    /// The name, if the sandbox has one.
    pub name: Option<String>,
    /// The name, if it was taken already.
    pub claim: Option<NameClaim>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Words in front of the command that are executed and not shown, if any.
    pub wrapper: Vec<OsString>,
    /// The user as whom `wrapper` runs the command; `None` for the caller.
    pub identity: Option<Identity>,
    /// The profile, if there is one.
    pub profile: Option<Profile>,
    /// The jail into which `wrapper` puts the command.
    pub jail: Option<Jail>,
    /// With whom the members share IPC. A jail has its own in any case.
    pub ipc: Ipc,
    /// The time that members have to end by themselves after the leader's end; those that are left then are described in the
    /// report before they are killed.
    pub leaks_after: Option<Duration>,
    /// Whether clients of container engines are looked for when one is executed. The kernel takes some 10 ms to end that.
    pub seeks_clients: bool,
    /// The program that asks the members to end before the polite signal does, with its arguments; empty for none.
    pub stop_command: Vec<OsString>,
    /// The rules that name members which the end leaves alone.
    pub spare: Vec<SpareRule>,
    /// Whether members may start sandboxes outside of this one, and hand members over to such.
    pub allow_outside: bool,
    /// The id of the sandbox from which this one is started, and which has allowed that.
    pub outside: Option<String>,
    /// The environment of the command, without the variables that the sandbox adds.
    pub environment: Vec<(OsString, OsString)>,
    /// The directory in which the command starts, if not the caller's.
    pub directory: Option<PathBuf>,
    /// The scratch directory, if one is requested.
    pub scratch: Option<ScratchSpec>,
    /// The resources, in the order in which they are made.
    pub resources: Vec<PlannedResource>,
    /// The containment.
    pub contain: Contain,
    /// The limits; with any, there must be a leaf.
    pub limits: Limits,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The polite signal.
    pub signal: Signal,
    /// The time to end after the polite signal.
    pub grace: Duration,
    /// The time that a kill may take until the survivors are reported.
    pub patience: Duration,
    /// The action when the owner dies.
    pub on_owner_exit: OwnerExit,
    /// The pid that the owner must have; `None` means any. The owner is the parent of this process. If it died before the
    /// start, this process would have another parent, and the sandbox would outlive its owner.
    pub owner: Option<Pid>,
    /// The action when the standard input hangs up; `None` if it is not watched.
    pub on_stdin_close: Option<StdinClose>,
    /// The state root.
    pub state_root: PathBuf,
    /// The file for the report.
    pub report: Option<ReportFile>,
    /// The open file for the lines of `--status-fd`.
    pub status: Option<std::fs::File>,
    /// The event log, if one is requested.
    pub event_log: Option<EventLog>,
    /// Whether the first SIGINT of the terminal stops the sandbox and the second kills it, whatever the command does
    /// with it.
    pub stop_on_interrupt: bool,
    /// The settings of a detached sandbox.
    pub detach: Option<Detach>,
}

impl Spec {
    /// Tells whether penfold makes an IPC namespace for the sandbox. In a jail bubblewrap does.
    #[must_use]
    pub fn has_own_ipc(&self) -> bool {
        self.ipc == Ipc::Private && self.jail.is_none()
    }

    /// Returns the name that the sandbox holds below its state root, if it has one.
    #[must_use]
    pub fn held_name(&self) -> Option<String> {
        self.name.as_ref().map(|name| name_text::held_name(name_text::tenant_of(&self.labels), name))
    }

    /// Returns the network namespace that the command enters.
    #[must_use]
    pub fn netns(&self) -> Option<PathBuf> {
        self.resources.iter().find_map(PlannedResource::netns_path)
    }
}

/// The open file for the report.
#[derive(Debug)]
pub struct ReportFile {
    /// The file.
    pub file: File,
    /// Whether the report is appended, because the file is also the standard output of the command.
    is_shared: bool,
    /// Whether the file had a name at the start, which the command may take away.
    had_name: bool,
}

impl ReportFile {
    /// Takes a file before the command runs.
    pub fn of(file: File, is_shared: bool) -> ReportFile {
        ReportFile { had_name: has_name(&file), file, is_shared }
    }

    /// Replaces the content of the file, or appends to a shared one. A pipe or device gets the text.
    ///
    /// # Errors
    /// Those of write(2), and when the command has removed the file.
    pub fn write(&self, text: &[u8]) -> io::Result<()> {
        let mut file = &self.file;
        if !self.is_shared && file.metadata()?.is_file() {
            file.set_len(0)?;
            file.rewind()?;
        }
        file.write_all(text)?;
        if self.had_name && !has_name(file) {
            return Err(io::Error::other("the file was removed meanwhile"));
        }
        Ok(())
    }
}

/// Whether a file has a name. Pipes have one, too; a file of `memfd_create(2)` and a removed one have none.
fn has_name(file: &File) -> bool {
    file.metadata().is_ok_and(|meta| meta.nlink() > 0)
}

/// The settings of a detached sandbox.
#[derive(Debug)]
pub struct Detach {
    /// The length of the lease, which can be renewed.
    pub ttl: Option<Duration>,
    /// What happens at the end of the lease.
    pub ttl_action: TtlAction,
    /// The time that the sandbox may be without output, input or exec.
    pub idle: Option<Duration>,
    /// Whether the sandbox continues when its supervisor is killed.
    pub keep: bool,
    /// Whether the record is removed when the sandbox ends.
    pub remove: bool,
    /// Whether the sandbox has a terminal.
    pub terminal: bool,
    /// The size of its log, in bytes.
    pub log_limit: u64,
    /// The probe of `--ready`, as the user wrote it.
    pub ready: Option<String>,
    /// The pipe over which the command says that it is ready.
    pub ready_pipe: Option<ReadyPipe>,
    /// Whether the sandbox is started again when its command fails.
    pub restart: Option<OnFailure>,
    /// The place in a row of restarts; `None` for a sandbox that is no restart.
    pub life: Option<Life>,
    /// The file that a restart needs; `None` if the sandbox cannot be restarted.
    pub launch: Option<LaunchSource>,
}

/// What happens at the end of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TtlAction {
    /// The sandbox ends.
    End,
    /// It is paused.
    Pause,
}

/// A pipe over which the command says that it is ready.
#[derive(Debug)]
pub struct ReadyPipe {
    /// The write end, which the command gets; `None` once it is the program's.
    pub write: Option<OwnedFd>,
    /// The number of the command's descriptor, above 2.
    pub number: i32,
    /// The read end. The supervisors keep it, so that a late write does not end the command by SIGPIPE.
    pub read: OwnedFd,
}

/// The specification of an exec: a command to run in an existing sandbox.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// The version of this format.
    pub schema: u32,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Changes to the environment of the sandbox; `None` removes a variable.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// The directory in which the command starts, if not the sandbox's.
    #[serde(default, with = "penfold_process::path_text")]
    pub directory: Option<PathBuf>,
    /// The time limit, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The polite signal.
    pub signal: i32,
    /// Whether the sandbox's own signal takes precedence; `signal` is then for a supervisor that does not know this
    /// field.
    #[serde(default)]
    pub as_sandbox: bool,
    /// The time to end after the polite signal, in milliseconds.
    pub grace_ms: u64,
    /// Whether the standard input is a terminal that becomes the controlling terminal.
    pub terminal: bool,
    /// Whether the exec continues when its client is gone.
    pub detached: bool,
    /// Whether the command becomes a user by itself: then it does not run as the user of the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_user: bool,
    /// Whether the command runs beside the jail of the sandbox, and not in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// The settings of a recorded exec, whose output and end stay on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<RecordSettings>,
}

impl ExecSpec {
    /// Writes the specification into a sealed memory file, so that the supervisor reads data that cannot change.
    ///
    /// # Errors
    /// Those of `memfd_create(2)` and write(2).
    pub fn sealed(&self) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(rustix::fs::memfd_create(c"penfold-exec", flags)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(file.into())
    }
}

/// The settings of a recorded exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSettings {
    /// The labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The size limit of the log, in bytes.
    pub log_limit: u64,
    /// Whether clients may write input while the command runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open_input: bool,
    /// The first size of the terminal, if the exec has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Whether what the command leaves goes on after its end, until the sandbox or a request ends it. Otherwise it ends with the command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lingers: bool,
}
