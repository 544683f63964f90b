//! [`SandboxSpec`]: the body of `POST /v1/sandboxes`, and a file for `penfold run --spec`.

#[cfg(test)]
mod schema;
mod stop;

use std::collections::BTreeMap;
use std::time::Duration;

use penfold_resource::request::{MountRequest, Network, OwnRequest, Request, Sockets, Workspace};
use penfold_state::Limits;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::stop::{HttpRequest, QmpRequest, StopChannel, Vmm, VmmKind};

/// A sandbox to be started. The defaults are those of `penfold run`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "flags of `penfold run`")]
pub struct SandboxSpec {
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(example = json!(["sh", "-c", "npm start"]), min_items = 1, required)]
    pub command: Vec<String>,
    /// The name: 1 to 64 of letters, digits, `_`, `.` and `-`, the first a letter or a digit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels; a value has at most 256 bytes. Keys that begin with `penfold.` are those of the server.
    #[serde(default, skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
    /// Variables of the command. The server adds a few of its own, such as `PATH` and `HOME`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub env: BTreeMap<String, String>,
    /// Files of variables, as `--env-file` has them; they are read at each start, and `env` takes precedence. Only in a file for
    /// `penfold run`; a server refuses the field.
    #[serde(default, skip_serializing_if = "is_default")]
    pub env_files: Vec<String>,
    /// Whether the command gets all variables of the server; default: false. In a file for `penfold run`: of the caller;
    /// default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inherit_env: Option<bool>,
    /// The directory in which the command starts; default: that of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Whether the sandbox gets an empty directory, which is removed at the end. Without `dir` it is the workspace.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scratch: bool,
    /// The time limit in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The lease in milliseconds: the sandbox is stopped after this time, unless the lease is extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Whether the sandbox is paused at the end of the lease, with its memory, and not ended. It then has no lease. Needs a cgroup: without one
    /// the sandbox ends.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease_pauses: bool,
    /// The time in milliseconds that the sandbox may be without output and exec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// The polite signal: a name such as `TERM`, or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// The time in milliseconds that a kill may take until the survivors are reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// The containment; default: `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contain: Option<Containment>,
    /// Whether the members share System V and POSIX IPC, and `/dev/shm`, with the host; default: `host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc: Option<Ipc>,
    /// The most memory of all members together, in bytes. Beyond it the kernel kills all of them; the cause is `memory`.
    #[schema(minimum = 1_048_576)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The most processes and threads.
    #[schema(minimum = 1, maximum = 4_194_304)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// The most processor time, as a number of processors.
    #[schema(minimum = 0.01, maximum = 8192, example = 1.5)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// The directory in which the command starts, made if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// A directory with a short path for sockets; the variable `PENFOLD_SOCKETS` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Sockets>,
    /// A network namespace with its links and devices; `PENFOLD_NETNS` and `PENFOLD_TAP` name them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Mounts for the time of the sandbox, in the order in which they are made.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mounts: Vec<MountRequest>,
    /// What the command makes itself, each as `KIND=NAME`, to be released after its end.
    #[schema(value_type = Vec<String>)]
    #[serde(default, skip_serializing_if = "is_default")]
    pub own: Vec<OwnRequest>,
    /// What the command is put into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The settings of the profile `jail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jail: Option<Jail>,
    /// The settings of the profile `vmm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vmm: Option<Vmm>,
    /// How the members are asked to end before they get the polite signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopChannel>,
    /// The daemons that the end leaves alone and the report names, each as `NAME`, `PATH`, `NAME:WORD` or `PATH:WORD`: the
    /// executable file, and a word of the command line.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(example = json!(["ssh-agent", "java:org.gradle.launcher.daemon.bootstrap.GradleDaemon"]))]
    pub spare: Vec<String>,
    /// Whether the command may start sandboxes that outlive this one, and hand processes over to such.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_outside: bool,
    /// The probe that shows whether the sandbox is ready: `port:N`, `log:REGEX`, `http:URL`, `cmd:LINE` or `fd:N`. Only in a file for
    /// `penfold run -d`, which waits for it; a server refuses the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// The time in milliseconds in which the sandbox must be ready; default: 30000. Only with `ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_timeout_ms: Option<u64>,
    /// When the sandbox is restarted: `on-failure` or `on-failure:N`, at most N times in a row. Only in a file for `penfold run -d`; a
    /// server refuses the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
    /// The size of the log in bytes; a full log drops the oldest output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_size: Option<u64>,
    /// Whether the record is removed when the sandbox ends, with log, exit and report.
    #[serde(default, skip_serializing_if = "is_default")]
    pub remove_at_end: bool,
    /// The user, or the user and the group, of the command: names or numbers. Only in a file for `penfold run` of root; a server refuses the
    /// field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The systemd scope for the sandbox. Only in a file for `penfold run`; a server refuses the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// Where the events of the sandbox are written too: `journald`, or the path of a file. Only in a file for `penfold run`; a server
    /// refuses the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_log: Option<String>,
    /// Whether the sandbox goes on when its supervisor is killed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub survive_supervisor: bool,
    /// Whether the command gets a terminal.
    #[serde(default, skip_serializing_if = "is_default")]
    pub terminal: bool,
}

/// Whether a field was not given. An older server knows no newer fields, so only given ones are sent.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a command is put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "flags", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// A jail of bubblewrap: own processes, read-only files, no network.
    Jail,
    /// Nothing: the command is a virtual machine monitor, whose sockets and polite stop penfold knows.
    Vmm,
}

impl Profile {
    /// Its word in JSON and as the value of `--profile`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Profile::Jail => "jail",
            Profile::Vmm => "vmm",
        }
    }
}

impl From<penfold_state::Profile> for Profile {
    fn from(profile: penfold_state::Profile) -> Profile {
        match profile {
            penfold_state::Profile::Jail => Profile::Jail,
            penfold_state::Profile::Vmm => Profile::Vmm,
        }
    }
}

impl From<Profile> for penfold_state::Profile {
    fn from(profile: Profile) -> penfold_state::Profile {
        match profile {
            Profile::Jail => penfold_state::Profile::Jail,
            Profile::Vmm => penfold_state::Profile::Vmm,
        }
    }
}

/// The settings of the profile `jail`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Jail {
    /// The root directory; default: that of the host.
    pub rootfs: Option<String>,
    /// The network; default: `new` if the sandbox has a network namespace, else `none`.
    pub network: Option<JailNetwork>,
    /// Whether a filter denies the system calls that a jail does not need; default: true.
    pub seccomp: Option<bool>,
    /// The name of a user of the jail's own, with the uid and gid 1000. Its home `/home/NAME` is the working directory, an empty
    /// directory that is removed at the end; neither `dir` nor `workspace` can be given then. Default: no such user.
    pub user: Option<String>,
}

/// The network of a jail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "flags", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum JailNetwork {
    /// A loopback device only.
    None,
    /// The network of the server; in a file for `penfold run`: of the caller.
    #[cfg_attr(feature = "flags", value(help = "The network of penfold's caller"))]
    Host,
    /// The network namespace of the sandbox.
    #[cfg_attr(feature = "flags", value(help = "The network namespace of the sandbox, as with --netns"))]
    New,
}

impl JailNetwork {
    /// Its word in JSON and as the value of `--network`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            JailNetwork::None => "none",
            JailNetwork::Host => "host",
            JailNetwork::New => "new",
        }
    }
}

/// With whom the members share System V and POSIX IPC, and `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "flags", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Ipc {
    /// With the host: shared memory, semaphores and message queues stay after the sandbox.
    Host,
    /// With nobody else: they end with the sandbox.
    Private,
}

impl From<Ipc> for penfold_state::Ipc {
    fn from(ipc: Ipc) -> penfold_state::Ipc {
        match ipc {
            Ipc::Host => penfold_state::Ipc::Host,
            Ipc::Private => penfold_state::Ipc::Private,
        }
    }
}

/// The systemd scope for a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "flags", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A scope where the caller's login session or service could end the sandbox, or has no delegated cgroup.
    Auto,
    /// No scope: the sandbox stays in the caller's unit.
    None,
    /// A scope from the user's manager, or an error.
    User,
    /// A scope from the system's manager, or an error.
    System,
}

impl Unit {
    /// The unit of this word, which is that in JSON and of `--unit`.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Unit> {
        match word {
            "auto" => Some(Unit::Auto),
            "none" => Some(Unit::None),
            "user" => Some(Unit::User),
            "system" => Some(Unit::System),
            _ => None,
        }
    }
}

/// The variables that a command gets from the server or the caller if it does not get all.
pub const USUAL_VARIABLES: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// The containment: the way in which penfold knows the members of the sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "flags", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Containment {
    /// `cgroup` if the host permits, else `subreaper`.
    #[default]
    Auto,
    /// A cgroup of its own.
    Cgroup,
    /// A pid namespace.
    Pidns,
    /// The descendants of the supervisor.
    Subreaper,
}

impl Containment {
    /// Its word in JSON and as the value of `--contain`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Containment::Auto => "auto",
            Containment::Cgroup => "cgroup",
            Containment::Pidns => "pidns",
            Containment::Subreaper => "subreaper",
        }
    }
}

impl SandboxSpec {
    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let cpus = self.cpus.and_then(|cpus| Duration::try_from_secs_f64(cpus).ok());
        Limits { memory_bytes: self.memory_bytes, pids: self.pids, cpus }
    }

    /// Returns the user of the jail's own.
    #[must_use]
    pub fn jail_user(&self) -> Option<&str> {
        self.jail.as_ref()?.user.as_deref()
    }

    /// Whether the sandbox gets an empty directory, as its scratch directory or as the home of its jail's user.
    #[must_use]
    pub fn has_scratch(&self) -> bool {
        self.scratch || self.jail_user().is_some()
    }

    /// Returns the resources.
    #[must_use]
    pub fn resources(&self) -> Request {
        Request {
            workspace: self.workspace.clone(),
            sockets: self.sockets.clone(),
            network: self.network.clone(),
            mounts: self.mounts.clone(),
            own: self.own.clone(),
        }
    }
}
