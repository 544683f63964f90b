//! Checks the features of this host, and what each means for the guarantee.
//!
//! The checks look and try. What a try creates (a cgroup, a few processes) is removed before the report, or named in
//! it.

mod limits;
mod probe;
mod scope;

use std::io;
use std::path::Path;

use penfold_cgroup::v1freezer::V1Freezer;
use penfold_cgroup::{LeafPlace, NoPlace, mountinfo};
use penfold_process::{Pid, ProcFs, Process, Signal, quote_words};
use penfold_teardown::Level;
use rustix::fs::Access;
use rustix::process::{PidfdFlags, Resource, pidfd_open};
use serde::Serialize;

pub use limits::{mend_limits, mend_scope_limits};
use penfold_state::error_chain;
use penfold_state::record::Registry;
use probe::LeafProbe;
pub use scope::ScopeTrial;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The feature is available.
    Ok,
    /// The guarantee holds, but is weaker or narrower here than elsewhere.
    Warn,
    /// penfold cannot do its work.
    Fail,
}

/// A feature that the host has or lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ability {
    /// The name, which never changes.
    pub name: &'static str,
    /// The result.
    pub state: State,
    /// The finding.
    pub found: String,
    /// The meaning for the guarantee.
    pub meaning: &'static str,
    /// A remedy: a command, or a description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// Whether a level of containment is available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LevelAbility {
    /// The level.
    pub level: Level,
    /// Whether the level is available.
    pub available: bool,
    /// The place, or the reason why the level is not available.
    pub reason: String,
}

/// The results of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// The features.
    pub abilities: Vec<Ability>,
    /// The levels of containment, the strongest first.
    pub levels: Vec<LevelAbility>,
}

fn ability(name: &'static str, state: State, found: impl Into<String>, meaning: &'static str) -> Ability {
    Ability { name, state, found: found.into(), meaning, mend: None }
}

impl Ability {
    fn mend(mut self, how: impl Into<String>) -> Ability {
        self.mend = Some(how.into());
        self
    }
}

/// Checks the host as this user sees it.
///
/// `state_root` is the directory for records. `makeshift` says that it is below a directory that anybody can write to,
/// because no better one exists. The function forks, so it works only in a single-threaded process.
///
/// # Errors
/// When /proc cannot be read at all: no check would be meaningful then.
pub fn check_host(state_root: &Path, makeshift: bool) -> io::Result<Abilities> {
    let (mut proc, unseen) = match ProcFs::open() {
        Ok(proc) => (proc, None),
        Err(error) => (ProcFs::blind(), Some(error)),
    };
    let mountinfo = std::fs::read("/proc/self/mountinfo")?;
    let place = LeafPlace::find_here();
    let leaf = match &place {
        Ok(place) if unseen.is_none() => Some(probe::probe_leaf(place, &mut proc)),
        Ok(_) | Err(_) => None,
    };
    let namespaces = probe::probe_namespaces();
    let handles = handles(&mut proc);
    let mut abilities = vec![kernel(handles.as_ref(), leaf.as_ref())];
    abilities.extend(cgroups(&mountinfo, &place, leaf.as_ref()));
    abilities.push(limits::check_controllers());
    abilities.push(freezer());
    abilities.push(pid_namespaces(&namespaces));
    abilities.push(pids());
    abilities.extend(process_limit());
    abilities.push(visible(&mut proc, unseen.as_ref()));
    abilities.push(state(state_root, makeshift));
    let mut levels = levels(&place, leaf.as_ref(), &namespaces);
    if let Some(error) = &unseen {
        for level in levels.iter_mut().filter(|level| level.level != Level::Subreaper) {
            (level.available, level.reason) = (false, error.to_string());
        }
    }
    if let Err(error) = &handles {
        for level in &mut levels {
            (level.available, level.reason) = (false, format!("no pidfd: {error}"));
        }
    }
    Ok(Abilities { abilities, levels })
}

/// Describes another state root of this user, and the number of living sandboxes in it.
pub fn other_root(root: &Path, living: usize) -> Ability {
    let (shown, those) = (root.display(), if living == 1 { "sandbox lives" } else { "sandboxes live" });
    let found = format!("{living} {those} below another state root of this user, {shown}");
    let meaning = "commands act on the sandboxes of one state root only";
    ability("other-root", State::Ok, found, meaning).mend(format!("penfold --root {shown} ps"))
}

/// Describes a file with tokens that other users can read or change.
pub fn open_token_file(path: &Path) -> Ability {
    let shown = quote_words([path.to_string_lossy()]);
    let found = format!("other users can read or change {shown}");
    let meaning = "who has a token of `penfold serve` acts as its tenant";
    ability("token-file", State::Warn, found, meaning).mend(format!("chmod 600 {shown}"))
}

/// Tries to hold and signal a process by a pidfd.
fn handles(proc: &mut ProcFs) -> io::Result<()> {
    let own = rustix::process::getpid();
    match Process::open(proc, own) {
        _ if proc.is_blind() => pidfd_open(own, PidfdFlags::empty()).map(drop).map_err(io::Error::from),
        Ok(Some(own)) => own.signal(Signal::CONT).map(drop),
        Ok(None) => Err(io::Error::from(io::ErrorKind::NotFound)),
        Err(error) => Err(error),
    }
}

fn kernel(handles: Result<&(), &io::Error>, leaf: Option<&LeafProbe>) -> Ability {
    const NAME: &str = "kernel";
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if let Err(error) = handles {
        let meaning = "without handles no process can be signalled safely: penfold does not work here";
        return ability(NAME, State::Fail, format!("kernel {release}: no pidfd: {error}"), meaning)
            .mend("penfold needs Linux 5.3 or newer, and a seccomp filter that knows pidfd_open(2)");
    }
    let mut has = vec!["pidfd"];
    if let Some(leaf) = leaf {
        if leaf.kill_file {
            has.insert(0, "cgroup.kill");
        }
        if leaf.born == Some(true) {
            has.push("clone3 into a cgroup");
        }
    }
    let meaning = "members are held by handles, so that no stranger is ever signalled";
    ability(NAME, State::Ok, format!("kernel {release}: {}", has.join(", ")), meaning)
}

/// Returns the remedy where no cgroup can be made. The errors of `--contain cgroup` show the same.
pub fn mend_place(why: &NoPlace) -> &'static str {
    match why {
        NoPlace::NotMounted => "as root: mount -t cgroup2 none /sys/fs/cgroup/unified",
        NoPlace::NotWritable { .. } => {
            "run it as root, or in a cgroup delegated to this user: systemd-run --user --scope -p Delegate=yes"
        }
        NoPlace::ReadOnly { .. } => "start the container with a cgroup file system that it may write to",
        _ => "run it in a cgroup that this user may write to",
    }
}

fn cgroups(mountinfo: &[u8], place: &Result<LeafPlace, NoPlace>, leaf: Option<&LeafProbe>) -> Vec<Ability> {
    let place = match place {
        Ok(place) => place,
        Err(why) => {
            let meaning = "sandboxes are tracked by descent alone: a command that kills both penfold processes gets away";
            return vec![ability("cgroup", State::Warn, error_chain(why), meaning).mend(mend_place(why))];
        }
    };
    let v1 = mountinfo::parse_mountinfo(mountinfo)
        .is_ok_and(|mounts| mounts.iter().any(|mount| mount.fs_type == "cgroup"));
    let path = place.path().display();
    let found =
        if v1 { format!("hybrid cgroups: leaves in {path}") } else { format!("cgroup2: leaves in {path}") };
    let meaning = "a sandbox has a cgroup of its own, which no member can leave by itself";
    let mut list = vec![ability("cgroup", State::Ok, found, meaning)];
    if let Some(leaf) = leaf {
        list.extend(leaf_abilities(leaf));
    }
    list
}

fn leaf_abilities(leaf: &LeafProbe) -> Vec<Ability> {
    let mut list = Vec::new();
    if let Some(reason) = &leaf.failed {
        let meaning = "sandboxes are tracked by descent alone";
        list.push(ability("leaf", State::Warn, format!("a cgroup could not be tried: {reason}"), meaning));
    }
    if let Some(left) = &leaf.left {
        let meaning = "the try left it behind";
        let found = format!("cannot remove the cgroup {} that was made to try", left.display());
        list.push(
            ability("leaf-left", State::Warn, found, meaning).mend(format!("rmdir {}", left.display())),
        );
    }
    if !leaf.kill_file && leaf.failed.is_none() {
        let meaning = "a cgroup is frozen and its members killed one by one, which is slower";
        list.push(ability("cgroup-kill", State::Warn, "no cgroup.kill (Linux 5.14)", meaning));
    }
    match (leaf.born, leaf.joined) {
        (Some(false), Some(true)) if leaf.refused.is_some() => {
            let meaning =
                "commands join their cgroup by a write before they run; where that fails they do not start";
            let reason = leaf.refused.as_deref().unwrap_or_default();
            let found = format!("no process can be cloned into a cgroup (clone3): {reason}");
            list.push(ability("clone-into-cgroup", State::Warn, found, meaning).mend(
                "Linux 5.7 or newer, and a seccomp filter that allows clone3(2); systemd: without RestrictNamespaces=",
            ));
        }
        (Some(false), Some(true)) => {
            let meaning =
                "commands join their cgroup by a write before they run; where that fails they do not start";
            let found =
                "a process cloned into a new cgroup dies at birth: penfold's own cgroup was killed once";
            list.push(
                ability("clone-into-cgroup", State::Warn, found, meaning)
                    .mend("start penfold from another cgroup"),
            );
        }
        (Some(false), _) => {
            let meaning = "no cgroup of its own for a sandbox";
            list.push(ability(
                "clone-into-cgroup",
                State::Warn,
                "no process gets into a new cgroup alive",
                meaning,
            ));
        }
        _ => {}
    }
    if let Some(trap) = leaf.trap {
        let found = if trap {
            "a cgroup that was killed kills all that is cloned into it later"
        } else {
            "a cgroup that was killed can be used again"
        };
        let meaning = "penfold makes a new cgroup for each life of a sandbox, so that this cannot matter";
        list.push(ability("killed-cgroup", State::Ok, found, meaning));
    }
    list
}

fn freezer() -> Ability {
    const NAME: &str = "v1-freezer";
    let root = rustix::process::geteuid().is_root();
    match V1Freezer::find_here() {
        Ok(Some(_)) if root => ability(
            NAME,
            State::Ok,
            "cgroup v1 freezer mounted",
            "members that were frozen in it are thawed to die",
        ),
        Ok(Some(_)) => {
            let found = "cgroup v1 freezer mounted, and only root may thaw";
            ability(
                NAME,
                State::Ok,
                found,
                "a member that root froze in it cannot be ended by this user; it is named",
            )
        }
        Ok(None) => {
            ability(NAME, State::Ok, "no cgroup v1 freezer", "no member can hide from SIGKILL in one")
        }
        Err(error) => {
            let meaning = "members that were frozen in it may stay; they are named";
            ability(NAME, State::Warn, format!("cannot look for a cgroup v1 freezer: {error}"), meaning)
        }
    }
}

fn pid_namespaces(tried: &io::Result<()>) -> Ability {
    const NAME: &str = "pid-namespace";
    match tried {
        Ok(()) => ability(
            NAME,
            State::Ok,
            "pid namespaces can be made",
            "`--contain pidns`: the kernel ends all with its init",
        ),
        Err(error) => {
            let found = format!("no pid namespace can be made: {error}");
            let mend = sysctl("user/max_user_namespaces", "0", "user.max_user_namespaces=15000")
                .or_else(|| {
                    sysctl("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1")
                })
                .or_else(|| {
                    let name = "kernel/apparmor_restrict_unprivileged_userns";
                    sysctl(name, "1", "kernel.apparmor_restrict_unprivileged_userns=0")
                });
            let mut ability = ability(
                NAME,
                State::Warn,
                found,
                "`--contain pidns` is refused; other levels are not affected",
            );
            ability.mend = mend;
            ability
        }
    }
}

fn sysctl(file: &str, bad: &str, setting: &str) -> Option<String> {
    let value = std::fs::read_to_string(Path::new("/proc/sys").join(file)).ok()?;
    (value.trim() == bad).then(|| format!("as root: sysctl {setting}"))
}

fn pids() -> Ability {
    let most = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    let found = format!("pid_max {}", most.trim());
    ability(
        "pid-max",
        State::Ok,
        found,
        "numbers come round again; identity is a handle and a start time, never a number",
    )
}

fn process_limit() -> Option<Ability> {
    /// Fewer processes leave no room for penfold's own and those of a command.
    const FEW: u64 = 32;
    let limit = rustix::process::getrlimit(Resource::Nproc).current?;
    let found = format!("RLIMIT_NPROC {limit}");
    if limit >= FEW || rustix::process::geteuid().is_root() {
        return Some(ability(
            "limit-nproc",
            State::Ok,
            found,
            "counts all processes of this user on the host",
        ));
    }
    let meaning = "a sandbox needs two processes of its own besides the command";
    Some(ability("limit-nproc", State::Warn, found, meaning).mend("ulimit -u unlimited"))
}

fn visible(proc: &mut ProcFs, unseen: Option<&io::Error>) -> Ability {
    const NAME: &str = "proc";
    if let Some(error) = unseen {
        let meaning = "members are known by descent alone, and no process can be named: only `run` at subreaper level works";
        return ability(NAME, State::Fail, error.to_string(), meaning)
            .mend("mount -t proc proc /proc, or `unshare --mount-proc`");
    }
    if proc.hides_processes() {
        let found = "/proc hides the processes of others (hidepid)";
        let meaning =
            "a search over the host cannot prove that nothing is left; ordinary runs do not need one";
        return ability(NAME, State::Warn, found, meaning).mend("as root: mount -o remount,hidepid=0 /proc");
    }
    ability(NAME, State::Ok, "/proc shows all processes", "a search over the host sees everybody")
}

fn state(root: &Path, makeshift: bool) -> Ability {
    const NAME: &str = "state";
    let shown = root.display();
    let meaning =
        "records let the next command end what is left when all penfold processes of a sandbox were killed";
    let warn = |found: String| {
        ability(NAME, State::Warn, found, meaning).mend("penfold --root DIR, a directory of this user")
    };
    match Registry::open_existing(root) {
        Err(error) => return warn(format!("records cannot be kept: {}", error_chain(&error))),
        Ok(Some(_)) => {}
        Ok(None) => {
            if !could_make(root) {
                return warn(format!("records cannot be kept: `{shown}` cannot be made"));
            }
        }
    }
    if rustix::fs::access(root, Access::WRITE_OK) == Err(rustix::io::Errno::ROFS) {
        return warn(format!("records cannot be kept: `{shown}` is read-only"));
    }
    let found = if makeshift {
        format!("records in {shown}, as there is no runtime directory (XDG_RUNTIME_DIR, /run/user/UID)")
    } else {
        format!("records in {shown}")
    };
    ability(NAME, State::Ok, found, meaning)
}

/// Tells whether the nearest existing directory is writable.
fn could_make(root: &Path) -> bool {
    let mut next = Some(root);
    while let Some(path) = next {
        match rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => return true,
            Err(rustix::io::Errno::NOENT) => {
                next = path
                    .parent()
                    .map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
            }
            Err(_) => return false,
        }
    }
    false
}

fn levels(
    place: &Result<LeafPlace, NoPlace>,
    leaf: Option<&LeafProbe>,
    namespaces: &io::Result<()>,
) -> Vec<LevelAbility> {
    let (available, reason) = match (place, leaf) {
        (Err(why), _) => (false, error_chain(why)),
        (Ok(_), Some(LeafProbe { failed: Some(reason), .. })) => (false, reason.clone()),
        (Ok(_), Some(leaf)) if leaf.born != Some(true) && leaf.joined != Some(true) => {
            (false, "no process gets into a new cgroup alive".to_owned())
        }
        (Ok(place), _) => (true, format!("in {}", place.path().display())),
    };
    let cgroup = LevelAbility { level: Level::Cgroup, available, reason };
    let pidns = LevelAbility {
        level: Level::Pidns,
        available: namespaces.is_ok(),
        reason: match namespaces {
            Ok(()) if rustix::process::geteuid().is_root() => "when asked for".to_owned(),
            Ok(()) => "when asked for, with a user namespace".to_owned(),
            Err(error) => error.to_string(),
        },
    };
    let asked = rustix::process::child_subreaper();
    let subreaper = LevelAbility {
        level: Level::Subreaper,
        available: asked.is_ok(),
        reason: asked
            .map_or_else(|errno| io::Error::from(errno).to_string(), |_: Option<Pid>| "always on".to_owned()),
    };
    vec![cgroup, pidns, subreaper]
}
