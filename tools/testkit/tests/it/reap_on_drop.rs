//! Whatever a test has started ends, and nothing else.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use penfold_testkit::proc::{self, Handle};
use penfold_testkit::{LeakGuard, ReapOnDrop, wait_until};

fn sleep(seconds: u32) -> Child {
    Command::new("sleep").arg(seconds.to_string()).stdin(Stdio::null()).spawn().unwrap()
}

fn handle(pid: i32) -> Handle {
    Handle::open(proc::stat(pid).unwrap().id).unwrap().unwrap()
}

fn pid(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

/// The processes below this one with this command line.
fn below(command: &str) -> Vec<Handle> {
    let list = proc::all();
    let below = proc::descendants(&list, proc::this().unwrap().id.pid);
    let found =
        list.iter().filter(|stat| below.contains(&stat.id.pid) && proc::command_line(stat) == command);
    found.filter_map(|stat| Handle::open(stat.id).unwrap()).collect()
}

/// spec: 21.6
#[test]
fn what_was_started_since_ends_and_what_was_there_lives() {
    let guard = LeakGuard::new();
    let mut older =
        Command::new("sh").args(["-c", "read x; sleep 2001 & wait"]).stdin(Stdio::piped()).spawn().unwrap();
    let reaper = ReapOnDrop::new();
    // The child of an older process, started since.
    drop(older.stdin.take());
    wait_until("it runs", || below("sleep 2001").len() == 1);
    let mut child = sleep(2002);
    let daemon = "setsid sh -c 'trap \"\" TERM; env -i sleep 2003' & exit";
    assert!(Command::new("sh").args(["-c", daemon]).stdin(Stdio::null()).status().unwrap().success());
    wait_until("the daemon runs", || below("sleep 2003").len() == 1);
    let members = [handle(pid(&child)), below("sleep 2003").remove(0)];
    assert!(members.iter().all(|member| !member.has_ended()));
    assert!(reaper.living().len() >= 3, "{:?}", reaper.living());
    drop(reaper);
    assert!(members.iter().all(Handle::has_ended));
    assert!(below("sleep 2001").len() == 1 && older.try_wait().unwrap().is_none());
    // The status of a child stays with the test.
    assert!(!child.wait().unwrap().success());
    for handle in below("sleep 2001") {
        handle.signal(rustix::process::Signal::KILL).unwrap();
    }
    older.wait().unwrap();
    guard.check();
}

/// spec: 21.6
#[test]
fn a_polite_signal_comes_first_if_there_is_a_grace() {
    let reaper = ReapOnDrop::new().grace(std::time::Duration::from_secs(30));
    let script = "trap 'exit 7' TERM; echo; while :; do read x || sleep 0.01; done";
    let mut child =
        Command::new("sh").args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    drop(reaper);
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

/// Started by the next test.
#[test]
#[ignore = "it fails"]
fn fails_and_leaves_a_process() {
    let _reaper = ReapOnDrop::new();
    // Dropped first: it finds the process.
    let _guard = LeakGuard::new();
    drop(sleep(2011));
    panic!("the test failed");
}

/// spec: 21.6
#[test]
fn during_a_panic_all_end_and_guards_report_without_a_second_panic() {
    let guard = LeakGuard::new();
    let name = "reap_on_drop::fails_and_leaves_a_process";
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    // 101 is a failed test; a second panic aborts.
    assert_eq!(done.status.code(), Some(101), "{text}");
    for part in ["the test failed", "left behind: Process", "ended what the test had left", "sleep 2011"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert!(below("sleep 2011").is_empty());
    guard.check();
}

/// Where `/proc` is empty. The variable is that of the second process, in which this is so.
/// spec: 21.6
#[test]
fn nothing_is_said_to_have_ended_where_nothing_can_be_seen() {
    let name = "reap_on_drop::nothing_is_said_to_have_ended_where_nothing_can_be_seen";
    if std::env::args().any(|word| word == "--nocapture") && proc::this().is_err() {
        let reaper = ReapOnDrop::new();
        let mut child = sleep(2004);
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(reaper)));
        assert!(child.try_wait().unwrap().is_none(), "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
        let text = dropped.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("no process can be seen"), "{text}");
        std::io::stdout().write_all(b"it was told\n").unwrap();
        return;
    }
    let script = "mount -t tmpfs none /proc && exec \"$0\" --exact \"$1\" --nocapture";
    let this = std::env::current_exe().unwrap();
    let again = Command::new("unshare").args(["-m", "sh", "-c", script]).arg(this).arg(name).output();
    let Some(again) = again.ok().filter(|_| rustix::process::geteuid().is_root()) else {
        return penfold_testkit::skip("only root can hide `/proc`");
    };
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(said.contains("it was told"), "{said}{}", String::from_utf8_lossy(&again.stderr));
}
