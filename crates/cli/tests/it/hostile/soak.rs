//! Hundreds of sandboxes at once, some of whose penfold processes are killed or stopped at a random moment.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{pause, wish};
use crate::support::{Level, Prng, TestEnv, entries, skip};
use penfold_cgroup::{Leaf, LeafPlace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const AT_ONCE: usize = 8;
/// If nothing else is said. No run is started after this; those before are all waited for.
const USUAL: Duration = Duration::from_secs(5);
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
        "trap 'sleep 600 & exit 6' HUP; while :; do sleep 0.05; done",
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

impl Harm {
    const ALL: [Harm; 7] = [
        Harm::None,
        Harm::None,
        Harm::KillFront,
        Harm::KillSupervisor,
        Harm::KillBoth,
        Harm::StopSupervisor,
        Harm::Terminate,
    ];
}

/// A cgroup that the sandboxes make theirs in, so that those of others are not looked at.
struct Ground(Option<Leaf>);

impl Ground {
    fn new(name: &str) -> Ground {
        let leaf = LeafPlace::find_here().ok().and_then(|place| Leaf::create(&place, name).ok());
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
        entries(leaf.path()).into_iter().filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let Some(leaf) = self.0.take() else { return };
        let Ok(leaf) = leaf.kill() else { return };
        penfold_testkit::until(Duration::from_secs(3), || !leaf.populated().unwrap_or(true));
        let _ = leaf.remove();
    }
}

/// The children of penfold below a launcher that is our own, unreaped child.
fn supervisors(launcher: &Child) -> Vec<OwnedFd> {
    let pid = launcher.id();
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
fn hurt(harm: Harm, launcher: &Child, handle: &OwnedFd) -> Vec<OwnedFd> {
    let (to_launcher, to_supervisors) = match harm {
        Harm::None => (None, None),
        Harm::KillFront => (Some(Signal::KILL), None),
        Harm::Terminate => (Some(Signal::TERM), None),
        Harm::KillSupervisor => (None, Some(Signal::KILL)),
        Harm::StopSupervisor => (None, Some(Signal::STOP)),
        Harm::KillBoth => (Some(Signal::KILL), Some(Signal::KILL)),
    };
    let mut children = supervisors(launcher);
    if let Some(signal) = to_launcher {
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

fn await_end(mut launcher: Child, handle: &OwnedFd) -> Option<ExitStatus> {
    let limit = Timespec::try_from(EACH).unwrap();
    let ended = matches!(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit)), Ok(1));
    if !ended {
        let _ = launcher.kill();
    }
    let status = launcher.wait().unwrap();
    ended.then_some(status)
}

/// The code as a shell has it in `$?`.
fn shell_code(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

/// One sandbox; what went wrong with it, if something did.
fn once(env: &TestEnv, ground: &Ground, levels: &[Level], seed: u64) -> Option<String> {
    let mut prng = Prng::of(seed);
    let level = prng.one_of(levels).word();
    let (options, script, code) = *prng.one_of(&TREES);
    let (harm, micros) = (*prng.one_of(&Harm::ALL), prng.below(40_000));
    let said = env.path(&format!("work/said-{seed:x}"));
    let mut command = env.run_command(
        ["--grace", "0.3", "--contain", level].iter().chain(options).chain(&["sh", "-c", script]),
    );
    command.stdout(std::process::Stdio::null()).stderr(File::create(&said).unwrap());
    let launcher = ground.spawn(&mut command).unwrap();
    let handle =
        pidfd_open(Pid::from_raw(i32::try_from(launcher.id()).unwrap()).unwrap(), PidfdFlags::empty());
    let handle = handle.unwrap();
    let mut stopped = Vec::new();
    if harm != Harm::None {
        pause(Duration::from_micros(micros));
        stopped = hurt(harm, &launcher, &handle);
    }
    let status = await_end(launcher, &handle);
    // The only child of a launcher whose supervisor has just ended is the one that nobody looks after.
    for child in stopped {
        let _ = pidfd_send_signal(&child, Signal::CONT);
    }
    let fine = match (harm, status) {
        (_, None) => false,
        // To stop a supervisor, or to kill one that is no more, changes nothing.
        (Harm::None | Harm::StopSupervisor, Some(status)) => shell_code(status) == Some(code),
        (Harm::KillFront | Harm::KillBoth, Some(status)) => {
            status.signal() == Some(9) || shell_code(status) == Some(code)
        }
        // 137: the leader died with its supervisor.
        (Harm::KillSupervisor, Some(status)) => {
            [Some(code), Some(120), Some(125), Some(137)].contains(&shell_code(status))
        }
        // Of TERM itself where it came before penfold was ready for it, and else as the command.
        (Harm::Terminate, Some(status)) => shell_code(status).is_some_and(|it| it != 120),
    };
    let text = std::fs::read_to_string(&said).unwrap_or_default();
    let _ = std::fs::remove_file(said);
    (!fine)
        .then(|| format!("seed {seed:#x}, {level}, `{script}`, {harm:?} at {micros} µs: {status:?} {text}"))
}

/// spec: 4.1
#[test]
fn nothing_is_left_of_hundreds_of_sandboxes_whose_supervisors_are_killed_at_random() {
    let length =
        wish("PENFOLD_SOAK_SECONDS").map_or(USUAL, |text| Duration::from_secs(text.parse().unwrap()));
    let chosen = wish("PENFOLD_SOAK_SEED").map(|text| u64::from_str_radix(&text, 16).unwrap());
    let base = chosen.unwrap_or_else(|| Prng::fresh().1 >> 16 << 12);
    eprintln!("PENFOLD_SOAK_SEED={base:x} PENFOLD_SOAK_SECONDS={}", length.as_secs());
    let env = TestEnv::new();
    let levels = env.levels();
    let ground = Ground::new(&format!("soak-{base:x}"));
    let (next, wrong, begun) = (AtomicU64::new(0), Mutex::new(Vec::new()), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while begun.elapsed() < length {
                    let seed = base + next.fetch_add(1, Ordering::Relaxed);
                    wrong.lock().unwrap().extend(once(&env, &ground, &levels, seed));
                }
            });
        }
    });
    let runs = next.into_inner();
    let wrong = wrong.into_inner().unwrap();
    // A command cleans up what those before it have left, a bounded number at a time, after it has answered.
    let clean = penfold_testkit::until(Duration::from_secs(30), || {
        env.run(["true"]);
        penfold_testkit::until(Duration::from_secs(1), || {
            entries(&env.path("root/sandboxes")).is_empty() && ground.left().is_empty()
        })
    });
    assert_eq!(wrong, Vec::<String>::new(), "of {runs} runs from seed {base:x}");
    assert!(clean, "seed {base:x}: left: {:?} {:?}", ground.left(), env.left());
    env.assert_nothing_left();
    println!("{runs} runs");
}
