//! Real processes, read through the real `/proc`.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use penfold_process::{
    Completeness, Delivery, EnvironmentMatch, Pid, ProcFs, Process, ProcessId, SchedulerState, Signal,
    StartTime, pid_from_raw,
};
use penfold_testkit::wait_until;

/// A child that is killed and reaped at the end of the test; processes that it started end at EOF of their input.
struct Guard(Child);

impl Guard {
    fn of(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a child"))
    }

    fn sleeper() -> Self {
        Self::of(Command::new("sleep").arg("1000"))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

fn me() -> Pid {
    rustix::process::getpid()
}

#[test]
fn stat_tells_child_zombie_and_gone_apart() {
    let mut proc = ProcFs::open().expect("/proc");
    let mut child = Guard::sleeper();
    let pid = child.pid();
    let stat = proc.stat(pid).expect("stat").expect("alive");
    assert_eq!((stat.pid, stat.parent), (pid, Some(me())));
    assert!(!stat.is_dead());
    child.0.kill().expect("ours");
    wait_until("a zombie", || {
        proc.stat(pid).expect("stat").is_some_and(|stat| stat.state == SchedulerState::Zombie)
    });
    assert!(proc.stat(pid).expect("stat").expect("unreaped").is_dead());
    child.end();
    assert!(proc.stat(pid).expect("gone is no error").is_none());
    assert!(proc.status(pid).expect("gone is no error").is_none());
    assert!(proc.cgroups(pid).expect("gone is no error").is_none());
    assert_eq!(proc.command_line(pid), None);
}

/// spec: 3.1
#[test]
fn a_handle_is_of_one_incarnation() {
    let mut proc = ProcFs::open().expect("/proc");
    let mut child = Guard::sleeper();
    let process = Process::open(&mut proc, child.pid()).expect("open").expect("alive");
    let id = process.id();
    assert!(Process::open_exact(&mut proc, id).expect("open").is_some());
    let other = ProcessId { start: StartTime(id.start.0 + 1), ..id };
    assert!(Process::open_exact(&mut proc, other).expect("open").is_none(), "another that has its pid");
    assert!(!process.has_exited().expect("poll"));
    assert_eq!(process.signal(Signal::KILL).expect("ours"), Delivery::Delivered);
    wait_until("exited", || process.has_exited().expect("poll"));
    assert!(Process::open(&mut proc, child.pid()).expect("open").is_none(), "a zombie cannot be aimed at");
    child.end();
    assert_eq!(process.signal(Signal::KILL).expect("gone is no error"), Delivery::Gone);
    assert!(Process::open_exact(&mut proc, id).expect("open").is_none());
}

#[test]
fn ancestors_are_read_from_the_parent_up_to_the_first_process() {
    let mut proc = ProcFs::open().expect("/proc");
    let child = Guard::sleeper();
    let stat = proc.stat(child.pid()).expect("stat").expect("alive");
    let found = proc.ancestors(&stat).expect("above a child");
    assert_eq!(found[0], proc.stat(me()).expect("stat").expect("alive").id());
    for pair in found.windows(2) {
        let stat = proc.stat(pair[0].pid).expect("stat").expect("above us");
        assert_eq!(stat.parent, Some(pair[1].pid));
    }
    let last = proc.stat(found.last().expect("a parent").pid).expect("stat").expect("above all");
    assert_eq!(last.parent, None);
    assert!(proc.ancestors(&last).expect("above none").is_empty());
}

/// spec: 3.1
#[test]
fn a_pidfd_that_is_of_another_process_is_refused() {
    let mut proc = ProcFs::open().expect("/proc");
    let (one, other) = (Guard::sleeper(), Guard::sleeper());
    let pidfd = |guard: &Guard| {
        rustix::process::pidfd_open(guard.pid(), rustix::process::PidfdFlags::empty()).expect("a child")
    };
    assert!(Process::from_pidfd(&mut proc, pidfd(&one), one.pid()).expect("its own").is_some());
    Process::from_pidfd(&mut proc, pidfd(&one), other.pid()).expect_err("the pidfd is of another process");
}

/// spec: 2.1
#[test]
fn without_proc_nothing_is_said_to_be_gone() {
    let mut proc = ProcFs::blind();
    let own = ProcFs::open().expect("/proc").stat(rustix::process::getpid()).expect("/proc").expect("this");
    assert_eq!(proc.presence(own.id()), penfold_process::ProcessPresence::Unknown);
    proc.stat(own.pid).expect_err("there is no /proc");
    proc.scan(|_| ()).expect_err("there is no /proc");
    let mut tree = Vec::new();
    assert_eq!(proc.descendants(own.pid, &mut tree).expect("a look"), Completeness::Incomplete);
    Process::open(&mut proc, own.pid).expect_err("there is no /proc");
}

#[test]
fn a_thread_is_no_process() {
    let mut proc = ProcFs::open().expect("/proc");
    let (send, receive) = std::sync::mpsc::channel();
    let (stop, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        send.send(rustix::thread::gettid()).expect("the test listens");
        let _ = wait.recv();
    });
    let tid = receive.recv().expect("the thread");
    assert!(Process::open(&mut proc, tid).expect("open").is_none());
    drop(stop);
    thread.join().expect("the thread");
}

#[test]
fn children_of_every_thread_are_found() {
    let mut proc = ProcFs::open().expect("/proc");
    let mut child = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let mut proc = ProcFs::open().expect("/proc");
                let child = Guard::sleeper();
                let mut children = Vec::new();
                proc.children(me(), &mut children).expect("children");
                assert!(children.contains(&child.pid()));
                child
            })
            .join()
            .expect("the thread")
    });
    // The thread is gone, or about to be: then its child belongs to another thread.
    let mut children = Vec::new();
    wait_until("found again", || {
        proc.children(me(), &mut children).expect("children");
        children.contains(&child.pid())
    });
    child.end();
    proc.children(child.pid(), &mut children).expect("gone is no error");
    assert!(children.is_empty());
}

#[test]
fn descendants_come_parents_first() {
    let mut proc = ProcFs::open().expect("/proc");
    // Each process ends when its input does, so nothing outlives the test.
    let script = "sh -c 'cat; :' & sh -c 'sh -c \"cat; :\"; :' <&0 & wait";
    let child = Guard::of(
        Command::new("sh").args(["-c", &format!("exec 3<&0; {}", script.replace("cat", "cat <&3"))]),
    );
    let mut tree = Vec::new();
    wait_until("five below", || {
        let complete = proc.descendants(child.pid(), &mut tree).expect("a walk");
        complete == Completeness::Complete && tree.len() == 5
    });
    for (index, stat) in tree.iter().enumerate() {
        let parent = stat.parent.expect("a parent");
        assert!(
            parent == child.pid() || tree[..index].iter().any(|before| before.pid == parent),
            "{tree:#?}"
        );
    }
    assert!(tree.iter().all(|stat| stat.pid != child.pid()), "the root is not below itself");
    // The input of these processes ends with ours, not with the death of the root.
    let below = tree;
    drop(child);
    wait_until("all ended", || {
        below.iter().all(|was| {
            proc.stat(was.pid).expect("stat").is_none_or(|now| now.start != was.start || now.is_dead())
        })
    });
}

#[test]
fn scan_sees_this_process_and_all_others() {
    let mut proc = ProcFs::open().expect("/proc");
    let (mut own, mut init, mut count) = (None, false, 0);
    let complete = proc
        .scan(|stat| {
            count += 1;
            init |= stat.pid.is_init();
            if stat.pid == me() {
                own = Some(stat);
            }
        })
        .expect("a scan");
    assert_eq!(own.expect("this process").pid, me());
    assert_eq!(init, complete.is_complete() || init, "without pid 1 a scan is not complete");
    assert_eq!(init, !proc.hides_processes());
    let mut pids = Vec::new();
    proc.processes(&mut pids).expect("a list");
    assert!(pids.contains(&me()) && count > 1);
}

#[test]
fn environ_finds_the_mark_even_far_behind() {
    let mut proc = ProcFs::open().expect("/proc");
    let padding = "x".repeat(100_000);
    let mut command = Command::new("sleep");
    command.arg("1000").env_clear().env("A0", "KEY=value").env("B", &padding).env("C", &padding[..70_001]);
    let child = Guard::of(command.env("KEY", "value").env("Z", &padding));
    let has = |proc: &mut ProcFs, key: &[u8], value: &[u8]| {
        proc.environ_has(child.pid(), key, |found| found == value)
    };
    wait_until("executed", || has(&mut proc, b"A0", b"KEY=value") == EnvironmentMatch::Yes);
    assert_eq!(has(&mut proc, b"KEY", b"value"), EnvironmentMatch::Yes);
    assert_eq!(has(&mut proc, b"KEY", b"valu"), EnvironmentMatch::No);
    assert_eq!(has(&mut proc, b"KE", b"value"), EnvironmentMatch::No);
    assert_eq!(proc.environ_has(child.pid(), b"B", |start| start.starts_with(b"xxx")), EnvironmentMatch::Yes);
    let gone = pid_from_raw(i32::MAX).expect("a pid");
    assert_eq!(proc.environ_has(gone, b"KEY", |_| true), EnvironmentMatch::No);
}

#[test]
fn command_line_is_short_and_harmless() {
    let mut proc = ProcFs::open().expect("/proc");
    let long = "y".repeat(4000);
    let child = Guard::of(Command::new("sh").args(["-c", "read a; :", "a\u{1b}[31mb", &long]));
    wait_until("executed", || {
        proc.command_line(child.pid()).is_some_and(|line| line.starts_with("sh -c 'read a; :' "))
    });
    let line = proc.command_line(child.pid()).expect("alive");
    assert!(line.contains("a\u{fffd}[31mb' yyy"), "{line}");
    assert!(line.len() < 300);
    let mut child = child;
    child.0.kill().expect("ours");
    wait_until("a zombie", || proc.command_line(child.pid()).as_deref() == Some("[sh]"));
}

#[test]
fn status_names_the_owner() {
    let mut proc = ProcFs::open().expect("/proc");
    let status = proc.status(me()).expect("status").expect("alive");
    assert_eq!(status.process, me());
    assert_eq!(status.uids[0], rustix::process::getuid().as_raw());
    assert_eq!(status.namespace_pids.first(), Some(&me()));
}

#[test]
fn a_sleeper_waits_somewhere_or_it_is_not_ours_to_see() {
    let mut proc = ProcFs::open().expect("/proc");
    let child = Guard::sleeper();
    wait_until("asleep", || {
        proc.stat(child.pid()).expect("stat").is_some_and(|stat| stat.state == SchedulerState::Sleeping)
    });
    if let Some(channel) = proc.wait_channel(child.pid()) {
        assert!(!channel.is_empty() && !channel.contains('\n'), "{channel}");
    }
}

#[test]
fn what_is_no_proc_is_refused() {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let dir = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).expect("a root");
    assert!(ProcFs::at(dir).is_err(), "an empty directory must not look like a host without processes");
}

#[test]
fn buffers_keep_nothing_of_the_process_before() {
    let mut proc = ProcFs::open().expect("/proc");
    let mut child =
        Guard::of(Command::new("cat").env_clear().env("KEY", "value").env("P", "p".repeat(20_000)));
    wait_until("executed", || {
        proc.environ_has(child.pid(), b"KEY", |v| v == b"value") == EnvironmentMatch::Yes
    });
    let bare = Guard::of(Command::new("cat").env_clear().env("Q", "q"));
    wait_until("executed", || proc.environ_has(bare.pid(), b"Q", |v| v == b"q") == EnvironmentMatch::Yes);
    assert_eq!(proc.environ_has(bare.pid(), b"KEY", |_| true), EnvironmentMatch::No);
    child.0.stdin.take().expect("piped").flush().expect("a pipe");
}
