//! Clients that do random things to detached sandboxes and their records, and a model that says what may be answered.
//!
//! `PENFOLD_SOAK_SECONDS` says for how long, `PENFOLD_SOAK_SEED` (hexadecimal) does the same again: what each client
//! does follows from the seed; when it happens does not.

mod fixture;
mod harm;
mod judge;
mod model;
mod plan;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::{pause, wish};
use crate::support::entries;
use fixture::Fixture;
use judge::{Client, OWN_KINDS};
use penfold_testkit::proc;
use penfold_testkit::{Bystander, LeakGuard, mounts};
use plan::plan;
use rustix::io::Errno;

const CLIENTS: usize = 8;
/// If nothing else is said.
const USUAL: Duration = Duration::from_secs(5);
/// More than this is no news.
const ENOUGH: usize = 12;

/// spec: 12.9
#[test]
#[expect(clippy::print_stderr, reason = "the seed must be known whatever happens")]
fn random_verbs_harm_and_damage_leave_nothing_and_every_answer_is_true() {
    let length =
        wish("PENFOLD_SOAK_SECONDS").map_or(USUAL, |text| Duration::from_secs(text.parse().unwrap()));
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    let chosen = wish("PENFOLD_SOAK_SEED").map(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16));
    let seed = chosen.map_or_else(|| u64::try_from(now()).unwrap(), Result::unwrap);
    eprintln!("PENFOLD_SOAK_SEED={seed:x} PENFOLD_SOAK_SECONDS={}", length.as_secs());
    let mut guard = LeakGuard::new();
    let mut bystander = Bystander::spawn().unwrap();
    let fixture = Fixture::new(seed);
    let marks = [Some(fixture.env.dir().to_owned()), fixture.leaves()].into_iter().flatten();
    marks.for_each(|mark| guard.mark(mark.display().to_string().trim_end_matches('/')));
    guard.mark(format!("soak-{seed:x}"));
    let stranger = proc::stat(i32::try_from(bystander.pid()).unwrap()).unwrap().id;

    soak(&fixture, length, stranger);
    let mut left = clean(&fixture);
    left.extend(inhabitants(&fixture));
    eprintln!("{}", fixture.counts());
    let wrong = fixture.wrongs();
    let told: Vec<String> =
        wrong.into_iter().chain(left.into_iter().map(|it| format!("left: {it}"))).collect();
    assert!(told.is_empty(), "seed {seed:x}:\n  {}", told.join("\n  "));
    assert!(bystander.is_alive(), "seed {seed:x}: a bystander was hit");
    fixture.env.assert_nothing_left();
    drop((fixture, bystander));
    guard.check();
}

/// Lets the clients loose, and waits for them.
fn soak(fixture: &Fixture, length: Duration, stranger: proc::Identity) {
    let begun = Instant::now();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loose = |number: usize| {
            let over = &over;
            move || {
                let mut client =
                    Client { fixture, number, step: 0, stranger, stopped: Vec::new(), mishap: None };
                while !over.load(Ordering::Relaxed)
                    && begun.elapsed() < length
                    && fixture.wrongs().len() < ENOUGH
                {
                    let (act, mishap) = plan(fixture.seed, number, client.step);
                    client.act(act, mishap);
                    client.step += 1;
                }
                for (_, stopped) in &client.stopped {
                    harm::go_on(stopped);
                }
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(loose(number))).collect();
        while !clients.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            fixture.reap();
            pause(Duration::from_millis(200));
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Ends and forgets all that there is; what cannot be.
fn clean(fixture: &Fixture) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let mut left = Vec::new();
        for words in [
            &["kill", "--all", "-f"][..],
            &["gc", "-f", "--older-than", "0", "--kind", OWN_KINDS],
            &["rm", "--all", "-f"],
        ] {
            let answer = fixture.call(words, None);
            if let Some(answer) = answer.filter(|answer| answer.code != 0) {
                left.push(format!("{words:?}: {} {}", answer.code, answer.err.trim()));
            }
        }
        end_unclaimed(fixture);
        collect_throwaways(fixture);
        take_away_cgroups_of_trees(fixture.seed);
        fixture.reap();
        left.extend(fixture.living().into_iter().map(|id| format!("{id} is alive")));
        let leaves = fixture.leaves().map(|leaves| entries(&leaves)).unwrap_or_default();
        let records = ["root/sandboxes", "root/names"].map(|place| entries(&fixture.env.path(place)));
        let found = leaves.into_iter().filter(|path| path.is_dir()).chain(records.into_iter().flatten());
        left.extend(found.map(|path| path.display().to_string()));
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
    }
}

/// What lost its record, both supervisors, and has no leaf, is known by its marker alone. Nothing tells below which state
/// root it was: it is listed, and ends when it is named. What has a record is ended without that.
fn end_unclaimed(fixture: &Fixture) {
    for id in fixture.living() {
        if !fixture.env.path("root/sandboxes").join(&id).try_exists().unwrap_or(true) {
            fixture.call(&["kill", &id], None);
        }
    }
}

/// The processes that stand beside the leaves when all is ended, as clients and supervisors do; whoever is on its way out
/// gets its time.
fn inhabitants(fixture: &Fixture) -> Vec<String> {
    let Some(ground) = fixture.leaves() else { return Vec::new() };
    let text = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let mut pids = String::new();
    penfold_testkit::until(Duration::from_secs(3), || {
        pids = text(ground.join("cgroup.procs").display().to_string());
        pids.is_empty()
    });
    let name = |pid: &str| {
        let line = text(format!("/proc/{pid}/cmdline")).replace('\0', " ");
        format!("{} {} {line}", text(format!("/proc/{pid}/stat")).trim(), text(format!("/proc/{pid}/wchan")))
    };
    pids.lines().map(name).collect()
}

/// A `doctor` that was killed leaves the cgroup that it tried things in, for `gc` to take when it is old enough. It bears no
/// label: one that was made for a sandbox and is left is none of those.
fn collect_throwaways(fixture: &Fixture) {
    let leaves = fixture.leaves().map(|leaves| entries(&leaves)).unwrap_or_default();
    for leaf in leaves.iter().filter(|path| path.is_dir()) {
        let label = rustix::fs::getxattr(leaf, c"user.penfold", &mut [0_u8; 0]);
        let name = leaf.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(id) = name.strip_prefix("penfold-").filter(|_| label == Err(Errno::NODATA)) {
            fixture.call(&["gc", "-f", "--older-than", "0", "--kind", "cgroup", id], None);
        }
    }
}

/// Some trees make cgroups outside their leaf, which are theirs.
fn take_away_cgroups_of_trees(seed: u64) {
    let cookie = format!("testkit-soak-{seed:x}-");
    let mut all = mounts::cgroups();
    all.sort();
    for cgroup in all.iter().rev().filter(|path| path.display().to_string().contains(&cookie)) {
        let _ = std::fs::remove_dir(cgroup);
    }
}
