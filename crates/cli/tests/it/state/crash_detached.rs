//! Every place with a crash point × `run -d`, `adopt` and the verbs that end a detached sandbox: SIGKILL there, then any
//! next command, and the host is as it was before.
//!
//! Penfold must have been built to die on demand, which no release is:
//! `cargo nextest run -p penfold -p penfold-testkit --features penfold/crash-points --test detached_crash`.

#![allow(clippy::print_stdout, reason = "a skipped test says why")]

use std::collections::BTreeSet;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use penfold_testkit::proc::{self, Handle};
use rustix::process::Signal;

use crate::support_e1::nest::Nest;
use crate::support_e1::{Ground, Level, PROMPT, Shape, USER, Who};
use crate::support_f::{Sandbox, records, said, until};

/// How long penfold may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// A leader that leaves two processes behind, one of them a stray, and one that stays.
const LEAVES: &str = "setsid sleep 60 & sleep 60 & sleep 0.2";
const STAYS: &str = "setsid sleep 60 & sleep 60";

/// All names in the sources below this directory: none can be forgotten here.
fn names_in(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            names_in(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let found = text.split("crash_point!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            names.extend(found.map(str::to_owned));
        }
    }
}

fn names() -> BTreeSet<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut names = BTreeSet::new();
    for name in ["supervisor", "sandbox", "teardown", "cgroup", "cli"] {
        names_in(&crates.join(name).join("src"), &mut names);
    }
    names
}

/// `run -d`, dying at this place; its exit status and what it has printed.
fn begin(
    ground: &Ground,
    level: Level,
    script: &str,
    crash: Option<&str>,
) -> Result<(ExitStatus, Option<Sandbox>), String> {
    let options = ["-d", "--scratch", "--grace", "300ms"];
    let mut command = ground.shaped(Shape::Pair, level, &options, &["sh", "-c", script]);
    if let Some(name) = crash {
        command.env("PENFOLD_CRASH_AT", name);
    }
    let (status, sandbox) = printed(ground, command)?;
    match (status.code(), &sandbox) {
        (Some(0), None) => Err("no id was printed".to_owned()),
        _ => Ok((status, sandbox)),
    }
}

/// The exit status of a command that may die, and the sandbox whose id it has printed.
fn printed(ground: &Ground, mut command: Command) -> Result<(ExitStatus, Option<Sandbox>), String> {
    let file = ground.path("id");
    let out = std::fs::File::create(&file).map_err(|error| error.to_string())?;
    let spawned = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()).spawn();
    let mut front = spawned.map_err(|error| error.to_string())?;
    let mut status = None;
    until(ANSWER, || {
        status = front.try_wait().ok().flatten();
        status.is_some()
    });
    let Some(status) = status else {
        let _ = front.kill();
        let _ = front.wait();
        return Err("the front hangs".to_owned());
    };
    let printed = std::fs::read_to_string(file).unwrap_or_default();
    Ok((status, Sandbox::printed(&ground.root(), &printed).ok()))
}

/// The next command, then the end of all that is listed; nothing may be left.
fn clean(nest: &Nest, ground: &Ground) -> Result<(), String> {
    forget_all(ground)?;
    let living = nest.await_nobody(2 * PROMPT);
    let left = ground.await_clean(2 * PROMPT);
    if living.is_empty() && left.is_empty() { Ok(()) } else { Err(format!("{living:?} {left:?}")) }
}

/// The next command, then the end of all that is listed.
fn forget_all(ground: &Ground) -> Result<(), String> {
    ground.next_command()?;
    for id in records(&ground.root()) {
        let output = ground.command(["rm", "-f", &id]).output().map_err(|error| error.to_string())?;
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(format!("not removed: {}", said(&output)));
        }
    }
    Ok(())
}

/// Dies at the place on the way of `run -d`, its own end included. Says whether the place was come by.
fn crash_of_run(nest: &Nest, name: &str, level: Level) -> Result<bool, String> {
    let ground = Ground::new(Who::Root)?;
    let takeover = name == "taking-over";
    let script = if takeover { STAYS } else { LEAVES };
    let (status, sandbox) = begin(&ground, level, script, Some(name))?;
    let mut crashed = status.code() != Some(0);
    if let Some(sandbox) = sandbox {
        let both = sandbox.supervisors();
        if let (true, Some(inner)) = (takeover, both.get(1)) {
            inner.signal(Signal::KILL).map_err(|error| error.to_string())?;
        }
        // Whoever of them dies at the place does so without a report, or the other writes why.
        until(ANSWER, || both.iter().all(Handle::has_ended));
        crashed |= !sandbox.has_ended() || sandbox.cause().as_deref() == Some("supervisor");
        // Who died right after the kill has left nobody for the other to end.
        let ended = sandbox.file("report.json").map(|report| report["ended"].clone());
        crashed |= !takeover && ended.is_some_and(|ended| ended.as_array().is_some_and(Vec::is_empty));
        // An end that is told must be one.
        if sandbox.has_ended() {
            let living = nest.await_nobody(PROMPT);
            if !living.is_empty() {
                return Err(format!("a report, and alive: {living:?}"));
            }
        }
    }
    clean(nest, &ground)?;
    Ok(crashed)
}

/// A command that ends a sandbox dies at the place. Says whether it came by.
fn crash_of_verb(
    nest: &Nest,
    name: &str,
    level: Level,
    words: &[&str],
    orphan: bool,
) -> Result<bool, String> {
    let ground = Ground::new(Who::Root)?;
    let (_, sandbox) = begin(&ground, level, STAYS, None)?;
    let sandbox = sandbox.ok_or("it does not run")?;
    if orphan {
        sandbox.kill_both()?;
    }
    let words = words.iter().copied().chain([sandbox.id.as_str()]);
    let output =
        ground.command(words).env("PENFOLD_CRASH_AT", name).output().map_err(|error| error.to_string())?;
    let crashed = output.status.signal() == Some(9);
    if !crashed && !output.status.success() {
        return Err(said(&output));
    }
    clean(nest, &ground)?;
    Ok(crashed)
}

/// A tree that penfold did not start, and where it was before.
struct Strays {
    root: Child,
    /// The root first.
    members: Vec<Handle>,
    cgroups: Vec<String>,
}

impl Strays {
    fn start(who: Who) -> Result<Strays, String> {
        let mut command = Command::new("sh");
        command.args(["-c", STAYS_HERE]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if who != Who::Root {
            command.uid(USER).gid(USER);
        }
        let root = command.spawn().map_err(|error| error.to_string())?;
        let mut strays = Strays { root, members: Vec::new(), cgroups: Vec::new() };
        let pid = i32::try_from(strays.root.id()).unwrap();
        let stands = until(ANSWER, || {
            let all = proc::all();
            let below = proc::descendants(&all, pid);
            let named =
                |name: &str| all.iter().filter(|one| below.contains(&one.id.pid) && one.name == name).count();
            named("sleep") == 2 && below.len() == 2
        });
        if !stands {
            return Err("the tree does not stand".to_owned());
        }
        let below = proc::descendants(&proc::all(), pid);
        let handles =
            std::iter::once(pid).chain(below).filter_map(|pid| Handle::open(proc::stat(pid)?.id).ok()?);
        strays.members = handles.collect();
        strays.cgroups = strays.members.iter().map(cgroup).collect();
        Ok(strays)
    }

    fn living(&self) -> usize {
        self.members.iter().filter(|member| !member.has_ended()).count()
    }

    /// Whether all of it is as if nobody had touched it.
    fn is_as_it_was(&self) -> bool {
        self.living() == self.members.len()
            && self.members.iter().map(cgroup).eq(self.cgroups.iter().cloned())
    }

    /// Ends the first process, as something that has nothing to do with penfold.
    fn end_root(&mut self) {
        let _ = self.root.kill();
        let _ = self.root.wait();
    }
}

impl Drop for Strays {
    fn drop(&mut self) {
        for member in &self.members {
            let _ = member.signal(Signal::KILL);
        }
        self.end_root();
    }
}

fn cgroup(member: &Handle) -> String {
    std::fs::read_to_string(format!("/proc/{}/cgroup", member.id.pid)).unwrap_or_default()
}

/// As [`STAYS`], with a shell that waits.
const STAYS_HERE: &str = "setsid sleep 60 & sleep 60 & wait; wait";

/// `adopt`, dying at this place.
fn adopt(ground: &Ground, strays: &Strays, name: &str) -> Result<(ExitStatus, Option<Sandbox>), String> {
    let mut command = match ground.cgroup() {
        // The leaf is made where penfold is.
        Some(cgroup) => {
            let mut command = Command::new("sh");
            command.args(["-c", "echo 0 > \"$0/cgroup.procs\"; exec \"$@\""]).arg(cgroup);
            command.arg(env!("CARGO_BIN_EXE_penfold")).arg("--root").arg(ground.root());
            command
        }
        None => ground.command([""; 0]),
    };
    command.args(["adopt", &strays.root.id().to_string()]).env("PENFOLD_CRASH_AT", name);
    let (status, sandbox) = printed(ground, command)?;
    if status.success() == sandbox.is_some() {
        Ok((status, sandbox))
    } else {
        Err(format!("{status} and no id"))
    }
}

/// Dies at the place on the way of `adopt`, or of the end of what was adopted. Says whether the place was come by.
fn crash_of_adopt(nest: &Nest, name: &str, who: Who) -> Result<bool, String> {
    let ground = Ground::new(who)?;
    let mut strays = Strays::start(who)?;
    let (_, sandbox) = adopt(&ground, &strays, name)?;
    let mut crashed = sandbox.is_none();
    if let Some(sandbox) = sandbox {
        let both = sandbox.supervisors();
        match (name, both.get(1)) {
            ("taking-over", Some(inner)) => drop(inner.signal(Signal::KILL)),
            _ => strays.end_root(),
        }
        until(ANSWER, || both.iter().all(Handle::has_ended));
        // The cause in the record may be that of before.
        let events = std::fs::read_to_string(ground.root().join("events.jsonl")).unwrap_or_default();
        crashed |= !sandbox.has_ended() || events.contains("\"cause\":\"supervisor\"");
        if sandbox.has_ended() && strays.living() > 0 {
            return Err(format!("a report, and {} alive", strays.living()));
        }
        if sandbox.file("exit.json").is_some_and(|exited| !exited["exit"].is_null()) {
            return Err("a code was invented".to_owned());
        }
    }
    forget_all(&ground)?;
    let left = ground.await_clean(2 * PROMPT);
    if !left.is_empty() {
        return Err(format!("left: {left:?}"));
    }
    // Taken in or not; what nobody knows members of tree level by is not ended by anybody.
    let out_of_reach = who == Who::Plain && crashed;
    until(PROMPT, || strays.living() == 0 || strays.is_as_it_was());
    if strays.living() > 0 && !strays.is_as_it_was() && !out_of_reach {
        return Err(format!("{} of {} live", strays.living(), strays.members.len()));
    }
    if strays.living() > 0 && !crashed {
        return Err("nobody died and it lives".to_owned());
    }
    if AFTER_A_MOVE.contains(&name) && who == Who::Root && strays.living() > 0 {
        return Err("it was moved, and lives without anybody".to_owned());
    }
    drop(strays);
    let living = nest.await_nobody(2 * PROMPT);
    if living.is_empty() { Ok(crashed) } else { Err(format!("{living:?}")) }
}

/// The places on the way of an adoption that come after the tree is in the leaf.
const AFTER_A_MOVE: [&str; 6] =
    ["adopted", "adopted-kept", "outer-forked", "taking-over", "killed", "releasing"];

/// The places on the way of a run that no other verb can come by.
const OF_A_RUN: [&str; 8] = [
    "front-forked",
    "reserving",
    "recorded",
    "leaf-made",
    "outer-forked",
    "inner-started",
    "inner-cloned",
    "running",
];

fn every_place(of: impl Fn(&Nest, &str, &mut Vec<String>) -> bool, must_come_by: &[&str]) {
    if let Err(why) = Ground::new(Who::Root) {
        return println!("skipped: {why}");
    }
    let nest = Nest::new();
    let mut failures = Vec::new();
    for name in &names() {
        let come_by = of(&nest, name, &mut failures);
        if !come_by && must_come_by.contains(&name.as_str()) {
            failures.push(format!("{name}: nothing comes by this place"));
        }
    }
    assert!(failures.is_empty(), "\n  {}", failures.join("\n  "));
    nest.check();
}

#[test]
fn crash_of_a_detached_run_leaves_the_host_as_it_was() {
    let of = |nest: &Nest, name: &str, failures: &mut Vec<String>| {
        let mut come_by = false;
        for level in Level::ALL {
            match crash_of_run(nest, name, level) {
                Ok(crashed) => come_by |= crashed,
                Err(why) => failures.push(format!("{name} {level:?}: {why}")),
            }
        }
        come_by
    };
    // The front of a detached sandbox does not fork a supervisor itself.
    let [_, places @ ..] = OF_A_RUN;
    every_place(of, &[&places[..], &["killed", "releasing", "taking-over"]].concat());
}

#[test]
fn crash_of_a_verb_leaves_the_host_as_it_was() {
    let of = |nest: &Nest, name: &str, failures: &mut Vec<String>| {
        let mut come_by = false;
        if OF_A_RUN.contains(&name) {
            return false;
        }
        for (words, orphan) in [
            (&["kill"][..], true),
            (&["rm", "-f"], true),
            (&["stop"], true),
            (&["kill"], false),
            (&["rm", "-f"], false),
        ] {
            for level in [Level::Cgroup, Level::Subreaper] {
                match crash_of_verb(nest, name, level, words, orphan) {
                    Ok(crashed) => come_by |= crashed,
                    Err(why) => failures.push(format!("{name} {words:?} {level:?} orphan {orphan}: {why}")),
                }
            }
        }
        come_by
    };
    every_place(of, &["recovering", "killed", "releasing"]);
}

#[test]
fn crash_of_an_adoption_leaves_the_host_as_it_was() {
    let of = |nest: &Nest, name: &str, failures: &mut Vec<String>| {
        let mut come_by = false;
        // In a leaf, and held by descent.
        for who in [Who::Root, Who::Plain] {
            match crash_of_adopt(nest, name, who) {
                Ok(crashed) => come_by |= crashed,
                Err(why) => failures.push(format!("{name} {who:?}: {why}")),
            }
        }
        come_by
    };
    every_place(of, &[&["reserving", "recorded", "leaf-made"][..], &AFTER_A_MOVE].concat());
}

/// The supervisor dies as soon as a command that was put into its sandbox may begin: the next one knows of it.
#[test]
fn crash_beside_a_command_that_begins_loses_sight_of_none() {
    if let Err(why) = Ground::new(Who::Root) {
        return println!("skipped: {why}");
    }
    let nest = Nest::new();
    // In a pid namespace the leader goes with its supervisor.
    for level in [Level::Cgroup, Level::Subreaper] {
        let ground = Ground::new(Who::Root).unwrap();
        let options = ["-d", "--on-supervisor-exit", "keep"];
        let mut command = ground.shaped(Shape::Pair, level, &options, &["sleep", "60"]);
        command.env("PENFOLD_CRASH_AT", "exec-begun");
        let sandbox = printed(&ground, command).unwrap().1.unwrap();
        let mut exec = ground.command(["exec", &sandbox.id, "sleep", "61"]);
        let mut exec = exec.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let listed =
            |what: &str| sandbox.file("state.json").and_then(|state| state[what].as_array().map(Vec::len));
        // The one that is left of two looks after it.
        assert!(until(ANSWER, || listed("supervisors") == Some(1)), "{level:?}: it did not die");
        assert_eq!(listed("execs"), Some(1), "{level:?}");
        assert!(ground.command(["kill", &sandbox.id]).status().unwrap().success(), "{level:?}");
        exec.wait().unwrap();
        clean(&nest, &ground).unwrap();
    }
    nest.check();
}
