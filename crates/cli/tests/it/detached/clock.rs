//! A wall clock that jumps: no lease, limit or patience of ours is measured by it, and no log is confused by it.
//!
//! The clock of the host is left alone. A process of ours sees another one from the moment in which the test has written
//! over its own copy of the kernel's `clock_gettime` (vdso(7)).

#![allow(clippy::disallowed_methods, reason = "what these tests remove is their own")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support_detach::{detach, forget, kill, over};
use crate::support_e2::{DEADLINE, Pen, Talk, eventually, pause, skip};
use crate::support_f::Sandbox;
use crate::support_f::socket::Control;
use serde_json::json;

/// A day back, and a day on.
const JUMPS: [i32; 2] = [-86_400, 86_400];
const SLACK: Duration = Duration::from_secs(5);

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
    let both = sandbox.supervisors();
    assert_eq!(both.len(), 2);
    let done = both.iter().all(|process| shift(process.id.pid, seconds).is_some());
    if !done {
        skip("the clock of another process cannot be changed here");
    }
    done
}

/// Checks that its supervisor has dated the end by the clock that jumped: else nothing was tried.
#[track_caller]
fn has_jumped(sandbox: &Sandbox, seconds: i32) {
    let at = sandbox.file("exit.json").unwrap()["at_ms"].as_i64().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let off = (at - i64::try_from(now).unwrap()) / 1000 - i64::from(seconds);
    assert!(off.abs() < 60, "the clock of the supervisor did not jump: {off} s off");
}

#[test]
fn no_limit_is_measured_by_the_wall_clock() {
    let pen = Pen::new();
    for seconds in JUMPS {
        for (flag, cause) in [("--ttl", "ttl"), ("--timeout", "timeout"), ("--idle-timeout", "idle")] {
            let begun = Instant::now();
            let sandbox = detach(&pen, &[flag, "3s", "--", "sleep", "1041"]);
            if !jump(&sandbox, seconds) {
                return kill(&sandbox);
            }
            pause(Duration::from_millis(700).saturating_sub(begun.elapsed()));
            assert!(!sandbox.has_ended() && pen.is_running("sleep 1041"), "{flag} {seconds}: ended at once");
            let (status, told, _) = over(&pen, &sandbox);
            let took = begun.elapsed();
            assert_eq!((status.as_str(), told.as_str()), ("killed", cause), "{seconds}");
            let right = Duration::from_millis(2900)..Duration::from_secs(3) + SLACK;
            assert!(right.contains(&took), "{flag} {seconds}: took {took:?}");
            has_jumped(&sandbox, seconds);
            forget(&sandbox);
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn lease_that_is_renewed_after_a_jump_has_the_length_that_was_asked_for() {
    let pen = Pen::new();
    for seconds in JUMPS {
        let sandbox = detach(&pen, &["--ttl", "3s", "--", "sleep", "1042"]);
        if !jump(&sandbox, seconds) {
            return kill(&sandbox);
        }
        let extend = |time: &str| {
            let done = crate::support_detach::output(&pen, &["extend", &sandbox.id, time]);
            assert!(done.status.success(), "{}", crate::support_f::said(&done));
        };
        extend("1m");
        pause(Duration::from_millis(3300));
        assert!(pen.is_running("sleep 1042") && !sandbox.has_ended(), "{seconds}");
        extend("100ms");
        assert!(eventually(SLACK, || sandbox.has_ended()), "{seconds}: not over");
        assert_eq!(over(&pen, &sandbox).1, "ttl");
        has_jumped(&sandbox, seconds);
        forget(&sandbox);
    }
    pen.assert_nothing_left();
}

#[test]
fn renewed_lease_outlives_the_supervisor_that_renewed_it() {
    let pen = Pen::new();
    for (first, renewed, lives) in [("3s", "1m", true), ("1m", "3s", false), ("3s", "0", true)] {
        let words = ["--ttl", first, "--on-supervisor-exit", "keep", "--", "sleep", "1046"];
        let sandbox = detach(&pen, &words);
        let done = crate::support_detach::output(&pen, &["extend", &sandbox.id, renewed]);
        assert!(done.status.success(), "{}", crate::support_f::said(&done));
        let inner = sandbox.supervisors().remove(1);
        inner.signal(rustix::process::Signal::KILL).unwrap();
        assert!(inner.wait(Some(DEADLINE)));
        if lives {
            pause(Duration::from_millis(3300));
            assert!(!sandbox.has_ended() && pen.is_running("sleep 1046"), "{first} {renewed}");
            kill(&sandbox);
        }
        assert!(eventually(SLACK, || sandbox.has_ended()), "{first} {renewed}: not over");
        assert_eq!(over(&pen, &sandbox).1, if lives { "kill" } else { "ttl" });
        forget(&sandbox);
    }
    pen.assert_nothing_left();
}

#[test]
fn grace_of_a_stop_has_its_length_whatever_the_clock_says() {
    let pen = Pen::new();
    for seconds in JUMPS {
        let sandbox = detach(&pen, &["--", "sh", "-c", "trap '' TERM; sleep 1043; sleep 1043"]);
        assert!(eventually(DEADLINE, || pen.is_running("sleep 1043")));
        let (control, _) = Control::to(&sandbox.record).unwrap();
        let begun = Instant::now();
        control.say("{\"stop\":{\"signal\":15,\"grace_ms\":3000}}");
        assert!(control.hear().is_some_and(|answer| answer.get("ending").is_some()));
        if !jump(&sandbox, seconds) {
            return kill(&sandbox);
        }
        assert!(eventually(SLACK, || sandbox.has_ended()), "{seconds}: not over");
        assert!(begun.elapsed() > Duration::from_millis(2800), "{seconds}: {:?}", begun.elapsed());
        assert_eq!(over(&pen, &sandbox), ("killed".into(), "stop".into(), json!({"signal": 9})));
        has_jumped(&sandbox, seconds);
        forget(&sandbox);
    }
    pen.assert_nothing_left();
}

#[test]
fn time_limit_of_a_wait_has_its_length_whatever_the_clock_says() {
    let pen = Pen::new();
    let sandbox = detach(&pen, &["--", "sleep", "1044"]);
    for seconds in JUMPS {
        let words = ["wait", "--timeout", "3s", sandbox.id.as_str()];
        let waiter = Talk::start(&mut crate::support_detach::command(&pen, words));
        let waits = || {
            let fds = std::fs::read_dir(format!("/proc/{}/fd", waiter.pid())).into_iter().flatten().flatten();
            let mut links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            links.any(|link| link.to_string_lossy().starts_with("socket:"))
        };
        assert!(eventually(DEADLINE, waits));
        if shift(waiter.pid(), seconds).is_none() {
            skip("the clock of another process cannot be changed here");
            break;
        }
        let ended = waiter.end().with_code(124);
        let right = Duration::from_millis(2900)..Duration::from_secs(3) + SLACK;
        assert!(right.contains(&ended.took), "{seconds}: took {:?}", ended.took);
    }
    kill(&sandbox);
    forget(&sandbox);
    pen.assert_nothing_left();
}

#[test]
fn log_keeps_its_order_over_a_jump() {
    let pen = Pen::new();
    for seconds in JUMPS {
        let script = "echo one; until [ -e go ]; do sleep 0.02; done; rm go; echo two; sleep 1045";
        let sandbox = detach(&pen, &["--", "sh", "-c", script]);
        let logged = |words: &[&str]| {
            let done =
                crate::support_detach::output(&pen, &[&["logs"], words, &[sandbox.id.as_str()]].concat());
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        assert!(eventually(DEADLINE, || logged(&[]) == "one\n"));
        if !jump(&sandbox, seconds) {
            return kill(&sandbox);
        }
        std::fs::write(pen.path("work/go"), "").unwrap();
        assert!(eventually(DEADLINE, || logged(&[]).contains("two")), "{:?}", logged(&[]));
        assert!(eventually(DEADLINE, || pen.is_running("sleep 1045")));
        assert_eq!(logged(&["-n", "1"]), "two\n");
        let times = logged(&["-t"]);
        assert!(times.find("one") < times.find("two"), "{times}");
        kill(&sandbox);
        forget(&sandbox);
    }
    pen.assert_nothing_left();
}
