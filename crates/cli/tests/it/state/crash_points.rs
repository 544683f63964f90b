//! Every place with a crash point × containment × shape: SIGKILL there, and the host is as it was before, at once or
//! after the next command where nobody was left to act.
//!
//! Penfold must have been built to die on demand, which no release is:
//! `cargo nextest run -p penfold -p penfold-testkit --features penfold/crash-points --test crash_points`.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a skipped test says why")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use penfold_testkit::Bystander;
use penfold_testkit::proc::{self, Handle};
use rustix::process::Signal;

use crate::support_e1::nest::Nest;
use crate::support_e1::{Ground, Level, PROMPT, Shape, Who, until};

/// How long penfold may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

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
    for name in ["supervisor", "sandbox", "teardown", "cgroup"] {
        names_in(&crates.join(name).join("src"), &mut names);
    }
    names.retain(|name| !DETACHED.contains(&name.as_str()));
    names
}

/// Only sandboxes that go on without who started them come by there: `detached_crash.rs`.
const DETACHED: [&str; 4] = ["running", "adopted", "adopted-kept", "exec-begun"];

/// Waits for the front, which must not hang.
fn await_front(front: &mut Child) -> Option<std::process::ExitStatus> {
    let mut status = None;
    until(ANSWER, || {
        status = front.try_wait().unwrap();
        status.is_some()
    });
    status
}

/// A leader that leaves two processes behind, one of them a stray, and one that stays.
const LEAVES: &str = "setsid sleep 60 & sleep 60 & sleep 0.2";
const STAYS: &str = "setsid sleep 60 & sleep 60";

/// What must happen for a run to come by a place.
enum Way {
    /// Nothing out of the ordinary.
    Run,
    /// The supervisor is killed.
    Takeover,
    /// All of ours are killed, and the next command comes by.
    Recovery,
}

impl Way {
    fn to(name: &str) -> Way {
        match name {
            "taking-over" => Way::Takeover,
            "recovering" => Way::Recovery,
            _ => Way::Run,
        }
    }
}

/// Our processes from the front downwards, once the leader below them runs.
fn ours(front: &Child) -> Result<Vec<Handle>, String> {
    let mut line = Vec::new();
    let stands = until(ANSWER, || {
        let all = proc::all();
        line.clear();
        let mut next = all.iter().find(|process| i32::try_from(front.id()) == Ok(process.id.pid));
        while let Some(process) = next.filter(|process| process.name == "penfold") {
            line.push(process.id);
            next = all.iter().find(|other| other.parent == process.id.pid && !other.is_dead());
        }
        next.is_some_and(|leader| leader.name == "sh" && line.len() > 1)
    });
    if !stands {
        return Err(format!("no leader below {line:?}"));
    }
    Ok(line.into_iter().filter_map(|id| Handle::open(id).ok().flatten()).collect())
}

/// Brings a front that has started to the place. True if penfold was seen to die there.
fn lead(ground: &Ground, front: &mut Child, way: &Way, name: &str, shape: Shape) -> Result<bool, String> {
    let supervisor = if shape == Shape::Trio { 2 } else { 1 };
    let tell = |error: std::io::Error| error.to_string();
    match way {
        Way::Run => {}
        Way::Takeover => {
            let line = ours(front)?;
            let supervisor = line.get(supervisor).ok_or("no supervisor")?;
            supervisor.signal(Signal::KILL).map_err(tell)?;
        }
        Way::Recovery => {
            let line = ours(front)?;
            for signal in [Signal::STOP, Signal::KILL] {
                for process in line.iter().take(supervisor + 1).rev() {
                    process.signal(signal).map_err(tell)?;
                }
            }
            await_front(front);
            ground.await_unlocked();
            let words = ["run", "--contain", "subreaper", "--", "true"];
            let output = ground.command(words).env("PENFOLD_CRASH_AT", name).output().map_err(tell)?;
            // What looks after the record would be done by then.
            let left = ground.await_clean(Duration::from_millis(500));
            return if output.status.success() {
                Ok(!left.is_empty())
            } else {
                Err("the next command".to_owned())
            };
        }
    }
    Ok(false)
}

/// Runs a command that leaves processes behind, dies at the named place, and looks at all that could be left. Says
/// whether the place was come by.
fn crash(nest: &Nest, name: &str, shape: Shape, level: Level) -> Result<bool, String> {
    let ground = Ground::new(Who::Root)?;
    let way = Way::to(name);
    let script = if matches!(way, Way::Run) { LEAVES } else { STAYS };
    let mut command = ground.shaped(shape, level, &["--scratch"], &["sh", "-c", script]);
    let mut front = nest.spawn(command.env("PENFOLD_CRASH_AT", name));
    let lead = lead(&ground, &mut front, &way, name, shape);
    let status = await_front(&mut front);
    let Some(status) = status else {
        let _ = front.kill();
        let _ = front.wait();
        return Err("the front hangs".to_owned());
    };
    let crashed = match way {
        Way::Run => status.code() != Some(0),
        // The front or the outer process, which took over, or else the code of a killed command.
        Way::Takeover => lead.map(|_| status.code() != Some(128 + 9))?,
        Way::Recovery => lead?,
    };
    let living = nest.await_nobody(PROMPT);
    // Whoever lives to answer answers for all of it.
    if status.code().is_some_and(|code| code != 120) && !(living.is_empty() && ground.left().is_empty()) {
        return Err(format!("{living:?} {:?} after {status}", ground.left()));
    }
    if !living.is_empty() || !ground.left().is_empty() {
        ground.next_command()?;
    }
    let living = nest.await_nobody(PROMPT);
    let left = ground.await_clean(PROMPT);
    if living.is_empty() && left.is_empty() {
        Ok(crashed)
    } else {
        Err(format!("{living:?} {left:?} after {status}"))
    }
}

#[test]
fn crash_at_any_point_leaves_the_host_as_it_was() {
    if let Err(why) = Ground::new(Who::Root) {
        return println!("skipped: {why}");
    }
    let nest = Nest::new();
    let names = names();
    assert!(names.len() >= 5, "{names:?}");
    let mut failures = Vec::new();
    for name in &names {
        let mut come_by = false;
        for shape in [Shape::Pair, Shape::Trio] {
            for level in Level::ALL {
                match crash(&nest, name, shape, level) {
                    Ok(crashed) => come_by |= crashed,
                    Err(why) => failures.push(format!("{name} {shape:?} {level:?}: {why}")),
                }
            }
        }
        if !come_by {
            failures.push(format!("{name}: no run comes by this place"));
        }
    }
    let mut bystander = Bystander::spawn().unwrap();
    bystander.assert_alive();
    drop(bystander);
    assert!(failures.is_empty(), "\n  {}", failures.join("\n  "));
    nest.check();
}
