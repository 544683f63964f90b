//! Hundreds of sandboxes at once, some of whose penfold processes are killed or stopped at a random moment.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::support_e2::{Pen, eventually, left, levels, pause, skip};
use penfold_cgroup::{Leaf, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const RUNS: usize = 500;
const AT_ONCE: usize = 8;
/// No run is started after this, however slow the machine; those before are all waited for.
const LONGEST: Duration = Duration::from_secs(15);
/// The most that one run may take.
const EACH: Duration = Duration::from_secs(20);

/// What is run: options, script, and the code where nobody interferes.
const TREES: [(&[&str], &str, i32); 10] = [
    (&[], "exit 7", 7),
    (&[], "sleep 600 & exit 3", 3),
    (&[], "setsid -f sleep 600; (setsid sleep 600 &); exit 4", 4),
    (&["--timeout", "0.1"], "sleep 600 & sleep 600", 124),
    (&["--timeout", "0.1"], "trap '' TERM; setsid -f sleep 600; while :; do sleep 1; done", 124),
    (&["--scratch"], "mkdir -p $TMPDIR/a/b; echo x > $TMPDIR/a/b/c; sleep 600 & exit 5", 5),
    (&[], "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; kill -9 $$", 137),
    (&["-w", "/nosuch"], "exit 0", 125),
    (
        &["--timeout", "0.1", "--signal", "HUP"],
        "trap 'sleep 600 & exit 6' HUP; while :; do sleep 0.01; done",
        124,
    ),
    (&[], "sleep 0.02", 0),
];

/// Who is hurt, how, at a random moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    None,
    KillFront,
    KillSupervisor,
    KillBoth,
    StopSupervisor,
    Terminate,
}

/// `SplitMix64`: small, and the same run again for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap() % most
    }

    fn harm(&mut self) -> Harm {
        [
            Harm::None,
            Harm::None,
            Harm::KillFront,
            Harm::KillSupervisor,
            Harm::KillBoth,
            Harm::StopSupervisor,
            Harm::Terminate,
        ][self.below(7)]
    }
}

/// A cgroup that the sandboxes make theirs in, so that those of others are not looked at.
struct Ground(Option<Leaf>);

impl Ground {
    fn new(name: &str) -> Ground {
        let leaf = Place::find_here().ok().and_then(|place| Leaf::create(&place, name).ok());
        if leaf.is_none() {
            skip("no cgroup can be made here: left cgroups are not looked for");
        }
        Ground(leaf)
    }

    fn spawn(&self, command: &mut std::process::Command) -> io::Result<Child> {
        match &self.0 {
            Some(leaf) => penfold_sys::launch::spawn_joined(command, leaf.processes_file()?),
            None => command.spawn(),
        }
    }

    fn left(&self) -> Vec<std::path::PathBuf> {
        let Some(leaf) = &self.0 else { return Vec::new() };
        left::entries(leaf.path()).into_iter().filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let Some(leaf) = self.0.take() else { return };
        let Ok(leaf) = leaf.kill() else { return };
        eventually(Duration::from_secs(3), || !leaf.populated().unwrap_or(true));
        let _ = leaf.remove();
    }
}

/// The children of penfold below a front that is our own, unreaped child.
fn supervisors(front: &Child) -> Vec<OwnedFd> {
    let pid = front.id();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?));
    children
        .filter_map(|child| {
            let handle = pidfd_open(child, PidfdFlags::empty()).ok()?;
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.as_raw_nonzero())).ok()?;
            status.contains(&format!("\nPPid:\t{pid}\n")).then_some(handle)
        })
        .collect()
}

/// Does it, and gives those that were stopped.
fn hurt(harm: Harm, front: &Child, handle: &OwnedFd) -> Vec<OwnedFd> {
    let (to_front, to_supervisors) = match harm {
        Harm::None => (None, None),
        Harm::KillFront => (Some(Signal::KILL), None),
        Harm::Terminate => (Some(Signal::TERM), None),
        Harm::KillSupervisor => (None, Some(Signal::KILL)),
        Harm::StopSupervisor => (None, Some(Signal::STOP)),
        Harm::KillBoth => (Some(Signal::KILL), Some(Signal::KILL)),
    };
    let mut children = supervisors(front);
    if let Some(signal) = to_front {
        let _ = pidfd_send_signal(handle, signal);
    }
    // After the supervisor there may be a process that ends the leftovers of others: it is not looked after.
    if harm == Harm::StopSupervisor {
        children.truncate(1);
    }
    for child in &children {
        to_supervisors.map(|signal| pidfd_send_signal(child, signal));
    }
    if harm == Harm::StopSupervisor { children } else { Vec::new() }
}

fn await_end(mut front: Child, handle: &OwnedFd) -> Option<ExitStatus> {
    let limit = Timespec::try_from(EACH).unwrap();
    let ended = matches!(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit)), Ok(1));
    if !ended {
        let _ = front.kill();
    }
    let status = front.wait().unwrap();
    ended.then_some(status)
}

/// One sandbox; what went wrong with it, if something did.
fn once(pen: &Pen, ground: &Ground, levels: &[&str], seed: u64) -> Option<String> {
    let mut random = Random(seed);
    let level = levels[random.below(levels.len())];
    let (options, script, code) = TREES[random.below(TREES.len())];
    let (harm, micros) = (random.harm(), random.below(40_000));
    let said = pen.path(&format!("work/said-{seed:x}"));
    let mut command =
        pen.run(["--grace", "0.3", "--contain", level].iter().chain(options).chain(&["sh", "-c", script]));
    command.stdout(std::process::Stdio::null()).stderr(File::create(&said).unwrap());
    let front = ground.spawn(&mut command).unwrap();
    let handle = pidfd_open(Pid::from_raw(i32::try_from(front.id()).unwrap()).unwrap(), PidfdFlags::empty());
    let handle = handle.unwrap();
    let mut stopped = Vec::new();
    if harm != Harm::None {
        pause(Duration::from_micros(u64::try_from(micros).unwrap()));
        stopped = hurt(harm, &front, &handle);
    }
    let status = await_end(front, &handle);
    // The only child of a front whose supervisor has just ended is the one that nobody looks after.
    for child in stopped {
        let _ = pidfd_send_signal(&child, Signal::CONT);
    }
    let fine = match (harm, status) {
        (_, None) => false,
        // To stop a supervisor, or to kill one that is no more, changes nothing.
        (Harm::None | Harm::StopSupervisor, Some(status)) => status.code() == Some(code),
        (Harm::KillFront | Harm::KillBoth, Some(status)) => {
            status.signal() == Some(9) || status.code() == Some(code)
        }
        // 137: the leader died with its supervisor.
        (Harm::KillSupervisor, Some(status)) => {
            [Some(code), Some(120), Some(125), Some(137)].contains(&status.code())
        }
        (Harm::Terminate, Some(status)) => {
            status.signal() == Some(15) || status.code().is_some_and(|it| it != 120)
        }
    };
    let text = std::fs::read_to_string(&said).unwrap_or_default();
    let _ = std::fs::remove_file(said);
    (!fine)
        .then(|| format!("seed {seed:#x}, {level}, `{script}`, {harm:?} at {micros} µs: {status:?} {text}"))
}

#[test]
fn nothing_is_left_of_hundreds_of_sandboxes_whose_supervisors_are_killed_at_random() {
    let pen = Pen::new();
    let levels = levels(&pen);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let base = u64::try_from(now.as_micros()).unwrap() << 12;
    let ground = Ground::new(&format!("soak-{base:x}"));
    let (next, wrong, begun) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while begun.elapsed() < LONGEST {
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= RUNS {
                        return;
                    }
                    let seed = base + u64::try_from(run).unwrap();
                    wrong.lock().unwrap().extend(once(&pen, &ground, &levels, seed));
                }
            });
        }
    });
    let runs = next.load(Ordering::Relaxed).min(RUNS);
    let wrong = wrong.into_inner().unwrap();
    // A command cleans up what those before it have left, a bounded number at a time, after it has answered.
    let clean = eventually(Duration::from_secs(10), || {
        pen.end(["true"]);
        eventually(Duration::from_secs(1), || {
            left::entries(&pen.path("root/sandboxes")).is_empty() && ground.left().is_empty()
        })
    });
    assert_eq!(wrong, Vec::<String>::new(), "of {runs} runs from seed {base:#x}");
    let records = left::entries(&pen.path("root/sandboxes"));
    let processes = left::processes(pen.path("root").parent().unwrap());
    assert!(clean, "seed {base:#x}: left: {:?} {records:?} {processes:?}", ground.left());
    pen.assert_nothing_left();
}
