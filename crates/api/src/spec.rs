//! What a user asks for: the body of `POST /v1/sandboxes`, and a file for `penfold run --spec`.

#[cfg(test)]
mod schema;
mod stop;

use std::collections::BTreeMap;
use std::ffi::OsString;

use penfold_resource::request::{MountRequest, Network, OwnRequest, Request, Sockets, Workspace};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::stop::{HttpRequest, QmpRequest, StopChannel, Vmm, VmmKind};

/// A sandbox to be started. The defaults are those of `penfold run`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "flags of `penfold run`")]
pub struct SandboxSpec {
    /// The program and its arguments.
    #[serde(default)]
    #[schema(example = json!(["sh", "-c", "npm start"]), min_items = 1, required)]
    pub command: Vec<String>,
    /// The name: 1 to 64 of letters, digits, `_`, `.` and `-`, the first a letter or a digit.
    pub name: Option<String>,
    /// Labels; a value has at most 256 bytes. Keys that begin with `penfold.` are those of the server.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Variables of the command. The server adds a few of its own, such as `PATH` and `HOME`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Whether the command gets all variables of the server; default: false. In a file for `penfold run`: of the caller;
    /// default: true.
    pub inherit_env: Option<bool>,
    /// The directory in which the command starts; default: that of the server.
    pub dir: Option<String>,
    /// Whether the sandbox gets an empty directory, which is removed at the end. Without `dir` it is the workspace.
    #[serde(default)]
    pub scratch: bool,
    /// The time limit in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The lease in milliseconds: the sandbox is stopped after this time, unless the lease is extended.
    pub lease_ms: Option<u64>,
    /// The time in milliseconds that the sandbox may be without output and exec.
    pub idle_timeout_ms: Option<u64>,
    /// The polite signal: a name such as `TERM`, or a number.
    pub signal: Option<String>,
    /// The time in milliseconds between the polite signal and SIGKILL.
    pub grace_ms: Option<u64>,
    /// The time in milliseconds that a kill may take until the survivors are reported.
    pub patience_ms: Option<u64>,
    /// The containment.
    #[serde(default)]
    pub contain: Containment,
    /// The most memory of all members together, in bytes. Beyond it the kernel kills all of them; the cause is `memory`.
    #[schema(minimum = 1_048_576)]
    pub memory_bytes: Option<u64>,
    /// The most processes and threads.
    #[schema(minimum = 1, maximum = 4_194_304)]
    pub pids: Option<u64>,
    /// The most processor time, as a number of processors.
    #[schema(minimum = 0.01, maximum = 8192, example = 1.5)]
    pub cpus: Option<f64>,
    /// The directory in which the command starts, made if it is missing.
    pub workspace: Option<Workspace>,
    /// A directory with a short path for sockets; the variable `PENFOLD_SOCKETS` names it.
    pub sockets: Option<Sockets>,
    /// A network namespace with its links and devices; `PENFOLD_NETNS` and `PENFOLD_TAP` name them.
    pub network: Option<Network>,
    /// Mounts for the time of the sandbox, in the order in which they are made.
    #[serde(default)]
    pub mounts: Vec<MountRequest>,
    /// What the command makes itself, each as `KIND=NAME`, to be released after its end.
    #[schema(value_type = Vec<String>)]
    #[serde(default)]
    pub own: Vec<OwnRequest>,
    /// What the command is put into.
    pub profile: Option<Profile>,
    /// The settings of the profile `jail`.
    pub jail: Option<Jail>,
    /// The settings of the profile `vmm`.
    pub vmm: Option<Vmm>,
    /// How the members are asked to end before they get the polite signal.
    pub stop: Option<StopChannel>,
    /// The daemons that the end leaves alone and the report names, each as `NAME`, `PATH`, `NAME:WORD` or `PATH:WORD`: the
    /// executable file, and a word of the command line.
    #[serde(default)]
    #[schema(example = json!(["ssh-agent", "java:org.gradle.launcher.daemon.bootstrap.GradleDaemon"]))]
    pub spare: Vec<String>,
    /// Whether the command may start sandboxes that outlive this one, and hand processes over to such.
    #[serde(default)]
    pub allow_outside: bool,
    /// The probe that shows whether the sandbox is ready: `port:N`, `log:REGEX`, `http:URL`, `cmd:LINE` or `fd:N`. Only in a file for
    /// `penfold run -d`, which waits for it; a server refuses the field.
    pub ready: Option<String>,
    /// The time in milliseconds in which the sandbox must be ready; default: 30000. Only with `ready`.
    pub ready_timeout_ms: Option<u64>,
    /// When the sandbox is restarted: `on-failure` or `on-failure:N`, at most N times in a row. Only in a file for `penfold run -d`; a
    /// server refuses the field.
    pub restart: Option<String>,
    /// The size of the log in bytes; a full log drops the oldest output.
    pub log_size: Option<u64>,
    /// Whether the record is removed when the sandbox ends, with log, exit and report.
    #[serde(default)]
    pub remove_at_end: bool,
    /// Whether the sandbox goes on when its supervisor is killed.
    #[serde(default)]
    pub survive_supervisor: bool,
    /// Whether the command gets a terminal.
    #[serde(default)]
    pub terminal: bool,
}

/// What a command is put into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// A jail of bubblewrap: own processes, read-only files, no network.
    Jail,
    /// Nothing: the command is a virtual machine monitor, whose sockets and polite stop penfold knows.
    Vmm,
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
}

/// The network of a jail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JailNetwork {
    /// A loopback device only.
    None,
    /// The network of the server; in a file for `penfold run`: of the caller.
    Host,
    /// The network namespace of the sandbox.
    New,
}

impl JailNetwork {
    fn word(self) -> &'static str {
        match self {
            JailNetwork::None => "none",
            JailNetwork::Host => "host",
            JailNetwork::New => "new",
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
    fn word(self) -> &'static str {
        match self {
            Containment::Auto => "auto",
            Containment::Cgroup => "cgroup",
            Containment::Pidns => "pidns",
            Containment::Subreaper => "subreaper",
        }
    }
}

impl SandboxSpec {
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

    /// The flags of `penfold run` that mean the same, without those for the environment.
    #[must_use]
    pub fn flags(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut option = |flag: &str, value: Option<&str>| {
            // In one word, so that a value with a leading hyphen is no flag.
            words.extend(value.map(|value| OsString::from(format!("{flag}={value}"))));
        };
        let ms = |time: Option<u64>| time.map(|time| format!("{time}ms"));
        option("--name", self.name.as_deref());
        for (key, value) in &self.labels {
            option("--label", Some(&format!("{key}={value}")));
        }
        option("--workdir", self.dir.as_deref());
        option("--timeout", ms(self.timeout_ms).as_deref());
        option("--ttl", ms(self.lease_ms).as_deref());
        option("--idle-timeout", ms(self.idle_timeout_ms).as_deref());
        option("--grace", ms(self.grace_ms).as_deref());
        option("--patience", ms(self.patience_ms).as_deref());
        option("--signal", self.signal.as_deref());
        option("--contain", Some(self.contain.word()));
        option("--memory", self.memory_bytes.map(|bytes| bytes.to_string()).as_deref());
        option("--pids", self.pids.map(|pids| pids.to_string()).as_deref());
        option("--cpus", self.cpus.map(|cpus| cpus.to_string()).as_deref());
        let resources = self.resources();
        if !resources.is_empty() {
            option("--resources", serde_json::to_string(&resources).ok().as_deref());
        }
        let profile = self.profile.map(|profile| match profile {
            Profile::Jail => "jail",
            Profile::Vmm => "vmm",
        });
        option("--profile", profile);
        option("--vmm", self.vmm.as_ref().and_then(|vmm| vmm.kind).map(VmmKind::word));
        option("--stop", self.stop.as_ref().and_then(|stop| serde_json::to_string(stop).ok()).as_deref());
        for rule in &self.spare {
            option("--spare", Some(rule));
        }
        option("--ready", self.ready.as_deref());
        option("--ready-timeout", ms(self.ready_timeout_ms).as_deref());
        option("--restart", self.restart.as_deref());
        if let Some(jail) = &self.jail {
            option("--rootfs", jail.rootfs.as_deref());
            option("--network", jail.network.map(JailNetwork::word));
        }
        option("--log-size", self.log_size.map(|size| size.to_string()).as_deref());
        option("--on-supervisor-exit", self.survive_supervisor.then_some("keep"));
        let unfiltered = self.jail.as_ref().is_some_and(|jail| jail.seccomp == Some(false));
        let flags = [
            (unfiltered, "--no-seccomp"),
            (self.remove_at_end, "--rm"),
            (self.scratch, "--scratch"),
            (self.terminal, "--tty"),
            (self.allow_outside, "--allow-outside"),
        ];
        words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag.into()));
        words
    }
}
