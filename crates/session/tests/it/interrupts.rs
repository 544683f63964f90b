//! Time limits and interrupts: which processes end, and what the shell keeps.

use std::time::{Duration, Instant};

use penfold_session::{EndKind, SessionClient, ShellCommand};

use crate::support::{Done, Session, run, sh, until, wait};

fn limited(text: &str, timeout_ms: u64) -> ShellCommand {
    ShellCommand { timeout_ms: Some(timeout_ms), grace_ms: Some(200), ..ShellCommand::new(text) }
}

/// Sets what every case must keep.
fn prepare(client: &mut SessionClient) {
    sh(client, "kept=yes; f() { echo f$kept; }; cd /usr; mkfifo \"$OLDPWD/fifo\"; fifo=$OLDPWD/fifo");
}

fn is_kept(client: &mut SessionClient, place: &str) {
    let done = sh(client, "f; pwd; echo $-");
    assert!(done.out().starts_with("fyes\n/usr\n"), "{place}: {done:?}");
}

/// Commands that do not end, and leave a shell that can go on.
const ENDLESS: &[&str] = &[
    "sleep 1000; echo more",
    "while :; do :; done; echo more",
    "while :; do :; done\necho more",
    "while :; do sleep 0.01; done; echo more",
    "g() { while :; do sleep 0.01; done; }; g; echo more",
    "h() { h2; echo more; }; h2() { while :; do :; done; echo more; }; h || echo more; echo more",
    "for ((;;)); do for i in 1 2 3; do sleep 0.001; done; done; echo more",
    "until false; do case x in x) [[ a == b ]];; esac; done; echo more",
    "eval 'while :; do :; done'; echo more",
    "eval 'sleep 1000'; echo more",
    "if sleep 1000; then echo more; else echo more; fi; echo more",
    "sleep 1000 || echo more",
    "x=$(sleep 1000); echo more",
    "sleep 1000 | cat; echo more",
    "yes | head -c 1G | sleep 1000; echo more",
    "(while :; do sleep 0.1; done); echo more",
    "(trap '' TERM; while :; do sleep 0.1; done); echo more",
    "bash -c 'trap : TERM; while :; do sleep 0.1; done'; echo more",
    "sleep 1000 & wait; echo more",
    "sleep 1000 & sleep 1000 & setsid sleep 1000 & wait; echo more",
    "setsid bash -c 'sleep 1000 & (setsid sleep 1000 &) ; sleep 1000'; echo more",
    "(setsid sleep 1000 &); sleep 1000; echo more",
    "cat < <(sleep 1000); echo more",
    "sleep 1000 > >(cat); echo more",
    ". <(echo 'sleep 1000; echo more'); echo more",
    "bash -c 'kill -STOP $$'; echo more",
    "kill -STOP $$; while :; do :; done; echo more",
    "trap 'echo debug' DEBUG; sleep 1000; echo more",
];

#[test]
fn time_limit_ends_the_processes_and_the_shell_keeps_its_state() {
    let session = Session::start();
    let mut client = session.connect();
    prepare(&mut client);
    for text in ENDLESS {
        let began = Instant::now();
        let done = run(&mut client, &limited(text, 100));
        let place = format!("{text:?} {:?}: {done:?}", began.elapsed());
        assert_eq!((done.end.how, done.end.replaced), (EndKind::TimedOut, false), "{place}");
        assert!(done.end.remaining.is_empty() && done.end.began, "{place}");
        assert_eq!(done.end.code, 124, "{place}");
        assert!(!done.out().contains("more"), "{place}");
        assert_eq!(session.processes().len(), 1, "{place}: {:?}", session.processes());
        is_kept(&mut client, &place);
    }
}

#[test]
fn time_limit_needs_no_name_that_a_function_has() {
    let session = Session::start();
    let mut client = session.connect();
    prepare(&mut client);
    let mine = ".() { :; }; set() { :; }; shopt() { :; }; trap() { :; }; return() { :; }; declare() { :; }";
    sh(&mut client, mine);
    for text in ["while :; do :; done; echo more", "sleep 1000; echo more"] {
        let done = run(&mut client, &limited(text, 100));
        assert_eq!((done.end.how, done.end.replaced), (EndKind::TimedOut, false), "{text}: {done:?}");
        assert!(!done.out().contains("more"), "{done:?}");
        assert_eq!(sh(&mut client, "echo $?").out(), "124\n");
    }
    sh(&mut client, "unset -f . set shopt trap return declare");
    is_kept(&mut client, "at the end");
}

#[test]
fn shell_that_does_not_come_back_is_replaced_with_directory_and_exports() {
    let session = Session::start();
    let mut client = session.connect();
    prepare(&mut client);
    sh(&mut client, "export here=there fifo; cd /usr/bin");
    for text in [
        "read x < $fifo",
        "echo x > $fifo",
        "trap '' RTMAX-3; while :; do :; done",
        "trap - RTMAX-3; while :; do :; done",
    ] {
        let done = run(&mut client, &limited(text, 100));
        assert_eq!((done.end.how, done.end.replaced), (EndKind::TimedOut, true), "{text}: {done:?}");
        assert_eq!(done.end.code, 124, "{text}");
        let next = sh(&mut client, "pwd; echo $here; f");
        // The function is part of the state, the variable in it is not.
        assert_eq!(next.out(), "/usr/bin\nthere\nf\n", "{text}: {next:?}");
    }
}

#[test]
fn background_jobs_of_earlier_commands_are_left_alone() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "sleep 1000 & (sleep 1001 &) ; setsid bash -c 'sleep 1002 & wait' & true");
    let jobs = |session: &Session| {
        let mut all: Vec<_> = session.processes().iter().map(penfold_process::Stat::id).collect();
        all.sort_unstable();
        all
    };
    until("all jobs run", || session.processes().iter().filter(|stat| stat.comm == "sleep").count() == 3);
    sh(&mut client, "true");
    let before = jobs(&session);
    for text in ["sleep 1000 & (sleep 1001 &) ; sleep 1002", "while :; do :; done"] {
        let done = run(&mut client, &limited(text, 100));
        assert_eq!(done.end.how, EndKind::TimedOut);
        assert_eq!(jobs(&session), before, "{text}");
    }
    assert!(sh(&mut client, "jobs %1").out().contains("Running"));
}

#[test]
fn client_interrupts_a_running_and_a_waiting_command() {
    let session = Session::start();
    let mut client = session.connect();
    let first = client.run(&ShellCommand::new("echo begun; sleep 1000; echo more")).unwrap();
    let second = client.run(&ShellCommand::new("echo second")).unwrap();
    let third = client.run(&ShellCommand::new("echo third")).unwrap();
    client.interrupt(second).unwrap();
    let done = wait(&mut client, second);
    assert_eq!((done.end.how, done.end.began), (EndKind::Interrupted, false));
    until("the first has begun", || session.processes().len() > 1);
    client.interrupt(first).unwrap();
    let done = wait(&mut client, first);
    assert_eq!((done.end.how, done.out().as_str(), done.end.code), (EndKind::Interrupted, "begun\n", 130));
    assert_eq!(wait(&mut client, third).out(), "third\n");
    assert!(client.interrupt(first).is_err() && client.interrupt(99).is_err());
}

#[test]
fn polite_process_has_its_grace() {
    let session = Session::start();
    let mut client = session.connect();
    let text = "bash -c 'trap \"echo asked; exit 5\" TERM; while :; do sleep 0.01; done'";
    let done = run(&mut client, &ShellCommand { grace_ms: Some(10_000), ..limited(text, 200) });
    assert_eq!((done.end.how, done.out().as_str()), (EndKind::TimedOut, "asked\n"), "{done:?}");
}

#[test]
fn time_limit_that_coincides_with_the_end_hits_nothing_else() {
    let session = Session::start();
    let mut client = session.connect();
    prepare(&mut client);
    for round in 0..100 {
        let done: Done = run(
            &mut client,
            &ShellCommand { timeout_ms: Some(2), ..ShellCommand::new("sleep 0.0015; echo done") },
        );
        let fits = match done.end.how {
            EndKind::Exited => done.out() == "done\n",
            EndKind::TimedOut => !done.end.replaced,
            _ => false,
        };
        assert!(fits, "round {round}: {done:?}");
        is_kept(&mut client, &format!("round {round}"));
    }
}

#[test]
fn storm_of_processes_ends() {
    let session = Session::start();
    let mut client = session.connect();
    let text = "f() { (trap '' TERM; while :; do sleep 0.005 & sleep 0.001; done) & }; f; f; f; wait";
    let began = Instant::now();
    let done = run(&mut client, &ShellCommand { grace_ms: Some(50), ..limited(text, 200) });
    assert_eq!((done.end.how, done.end.remaining.len()), (EndKind::TimedOut, 0), "{done:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(session.processes().len(), 1);
    assert_eq!(sh(&mut client, "echo usable").out(), "usable\n");
}
