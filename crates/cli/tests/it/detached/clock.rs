//! A jump of the wall clock changes no lease, limit, grace or patience, and the log keeps its order.
//!
//! The tests do not change the clock of the host. A test overwrites `clock_gettime` in the vdso(7) of one process: then
//! that process reads another time.
//!
//! After a jump back by a day, a deadline of seconds by the wall clock would be a day away: the sandbox must end. After a
//! jump on by a day, a deadline of an hour by the wall clock would be over: the sandbox must go on.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::json;

use super::sandboxes::{await_log, await_running, end, exec, kill, remove};
use crate::support::{ControlClient, Sandbox, TestEnv, entries, skip, wait_until};

/// A day back, and a day on, in seconds.
const BACK: i32 = -86_400;
const ON: i32 = 86_400;

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let mut whole = [0_u8; 8];
    whole.get_mut(..length)?.copy_from_slice(bytes.get(at..at + length)?);
    Some(u64::from_le_bytes(whole))
}

fn size(number: u64) -> Option<usize> {
    usize::try_from(number).ok()
}

/// Where `clock_gettime` begins in an image of the vDSO (elf(5): section headers, dynamic symbols).
fn entry(image: &[u8]) -> Option<u64> {
    let headers = size(number(image, 0x28, 8)?)?;
    let (each, count) = (size(number(image, 0x3a, 2)?)?, size(number(image, 0x3c, 2)?)?);
    let section = |index: usize| image.get(headers + index * each..);
    let symbols = (0..count).filter_map(section).find(|section| number(section, 4, 4) == Some(11))?;
    let names = section(size(number(symbols, 0x28, 4)?)?)?;
    let names = image.get(size(number(names, 0x18, 8)?)?..)?;
    let (at, length) = (size(number(symbols, 0x18, 8)?)?, size(number(symbols, 0x20, 8)?)?);
    let symbols = image.get(at..at + length)?.chunks_exact(24);
    let called = |symbol: &&[u8]| {
        let name = number(symbol, 0, 4).and_then(size).and_then(|at| names.get(at..));
        name.is_some_and(|name| name.starts_with(b"__vdso_clock_gettime\0"))
    };
    number(symbols.into_iter().find(called)?, 8, 8)
}

/// Lets the wall clock of one process jump by so many seconds. None where that cannot be done.
fn shift(pid: i32, seconds: i32) -> Option<()> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let (from, to) = range.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    let memory: File = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).ok()?;
    let mut image = vec![0_u8; size(to - from)?];
    memory.read_exact_at(&mut image, from).ok()?;
    // mov eax, 228; syscall; test edi, edi; jne +7; add qword [rsi], seconds; ret
    let mut code = vec![0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x07, 0x48, 0x81, 0x06];
    code.extend(seconds.to_le_bytes());
    code.push(0xc3);
    memory.write_all_at(&code, from + entry(&image)?).ok()
}

/// Lets the clock of both supervisors jump; says so and gives false where that cannot be done.
fn jump(sandbox: &Sandbox, seconds: i32) -> bool {
    assert_eq!(sandbox.supervisors.len(), 2);
    let done = sandbox.supervisors.iter().all(|process| shift(process.pid(), seconds).is_some());
    if !done {
        skip("the clock of another process cannot be changed here");
    }
    done
}

/// Checks that the supervisor has dated the end by the clock that jumped: else nothing was tried.
#[track_caller]
fn assert_jumped(sandbox: &Sandbox, seconds: i32) {
    let at = sandbox.file("exit.json").unwrap()["at_ms"].as_i64().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let off = (at - i64::try_from(now).unwrap()) / 1000 - i64::from(seconds);
    assert!(off.abs() < 600, "the clock of the supervisor did not jump: {off} s off");
}

/// Checks that a sandbox runs after its supervisor has looked at its deadlines, and kills it.
#[track_caller]
fn assert_goes_on(env: &TestEnv, sandbox: &Sandbox, case: &str) {
    // A supervisor that answers twice has looked at its deadlines between the answers.
    for _ in 0..2 {
        exec(env, sandbox, &["true"]).with_code(0);
    }
    assert_eq!(sandbox.status(env).as_deref(), Some("running"), "{case}");
    kill(sandbox);
    assert_eq!(sandbox.cause().as_deref(), Some("kill"), "{case}");
}

/// spec: 12.11
#[test]
fn no_limit_is_measured_by_the_wall_clock() {
    const LIMITS: [(&str, &str); 3] =
        [("--ttl", "ttl"), ("--timeout", "timeout"), ("--idle-timeout", "idle")];
    let env = TestEnv::new();
    let mut sandboxes = Vec::new();
    for (flag, cause) in LIMITS {
        let sandbox = env.detach([flag, "1500ms", "--", "sleep", "1041"]);
        if !jump(&sandbox, BACK) {
            return;
        }
        sandboxes.push((sandbox, cause));
    }
    for (flag, _) in LIMITS {
        let sandbox = env.detach([flag, "1h", "--", "sleep", "1041"]);
        assert!(jump(&sandbox, ON));
        assert_goes_on(&env, &sandbox, flag);
        assert_jumped(&sandbox, ON);
        remove(&env, &sandbox);
    }
    for (sandbox, expected) in sandboxes {
        let (status, cause, _) = end(&env, &sandbox);
        assert_eq!((status.as_str(), cause.as_str()), ("killed", expected));
        assert_jumped(&sandbox, BACK);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.11
#[test]
fn lease_that_is_renewed_after_a_jump_has_the_length_that_was_asked_for() {
    let env = TestEnv::new();
    for seconds in [BACK, ON] {
        let sandbox = env.detach(["--ttl", "1h", "--", "sleep", "1042"]);
        if !jump(&sandbox, seconds) {
            return;
        }
        let extend = |time: &str| sandbox.call(&env, &["extend", "ID", time]).with_code(0);
        if seconds == ON {
            extend("1m");
            assert_goes_on(&env, &sandbox, "a minute");
        } else {
            extend("100ms");
            assert_eq!(end(&env, &sandbox).1, "ttl");
        }
        assert_jumped(&sandbox, seconds);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.3
#[test]
fn renewed_lease_outlives_the_supervisor_that_renewed_it() {
    let env = TestEnv::new();
    // The last one ends last: its lease begins when those of the others are renewed.
    let sandboxes = [("1500ms", "1m"), ("1500ms", "0"), ("1h", "1500ms")].map(|(first, renewed)| {
        let sandbox = env.detach(["--ttl", first, "--on-supervisor-exit", "keep", "--", "sleep", "1046"]);
        sandbox.call(&env, &["extend", "ID", renewed]).with_code(0);
        sandbox.supervisors[1].signal(Signal::KILL);
        sandbox.supervisors[1].await_end();
        sandbox
    });
    let [longer, without, shorter] = &sandboxes;
    assert_eq!(end(&env, shorter).1, "ttl");
    assert_goes_on(&env, longer, "a minute");
    assert_goes_on(&env, without, "no lease");
    for sandbox in &sandboxes {
        remove(&env, sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.11
#[test]
fn grace_of_a_stop_has_its_length_whatever_the_clock_says() {
    let env = TestEnv::new();
    for (seconds, grace_ms) in [(BACK, 1000), (ON, 3_600_000)] {
        let sandbox = env.detach(["--", "sh", "-c", "trap '' TERM; exec sleep 1043"]);
        let members = await_running(&env, &["sleep 1043"]);
        let client = ControlClient::connect(&sandbox.record).unwrap();
        client.say(&json!({"stop": {"signal": 15, "grace_ms": grace_ms}}).to_string());
        assert!(client.hear().is_some_and(|answer| answer.get("ending").is_some()));
        if !jump(&sandbox, seconds) {
            return;
        }
        if seconds == ON {
            // A supervisor that greets twice has looked at its deadlines between the greetings.
            for _ in 0..2 {
                ControlClient::connect(&sandbox.record).unwrap();
            }
            assert_eq!(sandbox.status(&env).as_deref(), Some("stopping"));
            assert!(!members[0].has_ended(), "the grace was cut short");
            kill(&sandbox);
        }
        assert_eq!(end(&env, &sandbox), ("killed".into(), "stop".into(), json!({"signal": 9})));
        sandbox.assert_gone(&members);
        assert_jumped(&sandbox, seconds);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.11
#[test]
fn time_limit_of_a_wait_has_its_length_whatever_the_clock_says() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "1044"]);
    for (seconds, limit) in [(BACK, "1s"), (ON, "1h")] {
        let waiter = env.begin(["wait", "--timeout", limit, &sandbox.id]);
        wait_until("the waiter is connected", || {
            let fds = entries(format!("/proc/{}/fd", waiter.pid()).as_ref()).into_iter();
            let mut links = fds.filter_map(|fd| std::fs::read_link(fd).ok());
            links.any(|link| link.to_string_lossy().starts_with("socket:"))
        });
        if shift(waiter.pid(), seconds).is_none() {
            return skip("the clock of another process cannot be changed here");
        }
        if seconds == ON {
            // Its clock says that the limit is over; the end of the sandbox wakes it.
            kill(&sandbox);
            waiter.finish().with_code(137);
        } else {
            waiter.finish().with_code(124);
        }
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 12.11
#[test]
fn log_keeps_its_order_over_a_jump() {
    let env = TestEnv::new();
    for seconds in [BACK, ON] {
        let script = "echo one; until [ -e go ]; do sleep 0.05; done; rm go; echo two; sleep 1045";
        let sandbox = env.detach(["--", "sh", "-c", script]);
        await_log(&env, &sandbox, "one\n");
        if !jump(&sandbox, seconds) {
            return;
        }
        std::fs::write(env.path("work/go"), "").unwrap();
        await_log(&env, &sandbox, "two\n");
        let log = |flags: &[&str]| sandbox.call(&env, &[&["logs"], flags, &["ID"]].concat()).out();
        assert_eq!(log(&["-n", "1"]), "two\n");
        let times = log(&["-t"]);
        assert!(times.find("one") < times.find("two"), "{times}");
        kill(&sandbox);
        assert_jumped(&sandbox, seconds);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}
