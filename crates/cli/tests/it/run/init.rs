//! `penfold run` as pid 1 of a pid namespace, as in a container: it reaps, forwards and exits as a good init does.

use std::time::Duration;

use crate::support_e2::{Pen, Talk, left, levels, root, tool};
use rustix::process::Signal;

const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

fn usable() -> bool {
    root() && tool(&["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "true"])
}

/// Starts `penfold run` with these words as pid 1.
fn init(pen: &Pen, words: &[&str]) -> Talk {
    let mut command = pen.command(UNSHARE[0]);
    command
        .args(&UNSHARE[1..])
        .arg(crate::support_e2::penfold())
        .arg("--root")
        .arg(pen.path("root"))
        .arg("run")
        .args(words);
    Talk::start(&mut command)
}

#[test]
fn codes_pass_through() {
    if !usable() {
        return;
    }
    let pen = Pen::new();
    for level in levels(&pen) {
        let words = |command: &[&'static str]| {
            ["--contain", level].iter().chain(command).copied().collect::<Vec<_>>()
        };
        init(&pen, &words(&["sh", "-c", "exit 7"])).end().with_code(7);
        init(&pen, &words(&["sh", "-c", "kill -TERM $$"])).end().with_code(143);
        init(&pen, &words(&["no-such-command"])).end().refused(127, "cannot run `no-such-command`");
        init(&pen, &words(&["--timeout", "0.2", "sleep", "600"])).end().with_code(124);
    }
    pen.assert_nothing_left();
}

#[test]
fn orphans_are_reaped_while_the_command_runs() {
    if !usable() {
        return;
    }
    let pen = Pen::new();
    // Orphans of every kind end; the command goes on when none of them is left, not even as a zombie.
    let script = "
        for i in 1 2 3 4 5; do (setsid sh -c 'exit 3' &); (sh -c 'sleep 0.05 & exit' &); done
        for i in $(seq 500); do
            grep -lE '^[0-9]+ \\((sh|sleep)\\)|\\) Z ' /proc/[0-9]*/stat 2>/dev/null | grep -q . || exit 9
            read -r -t 0.02 <> gate
        done
        cat /proc/[0-9]*/stat; exit 1";
    let script = format!("mkfifo gate; {script}");
    for level in levels(&pen) {
        init(&pen, &["--contain", level, "bash", "-c", &script]).end().with_code(9);
        std::fs::remove_file(pen.path("work/gate")).unwrap();
    }
    pen.assert_nothing_left();
}

#[test]
fn term_is_forwarded_and_strays_end() {
    if !usable() {
        return;
    }
    let pen = Pen::new();
    let script = "trap 'exit 5' TERM; setsid -f sleep 600; (sleep 600 &); mkfifo g; echo ready; while :; do read -r -t 0.1 <> g; done";
    for level in levels(&pen) {
        let talk = init(&pen, &["--contain", level, "bash", "-c", script]);
        talk.hear("ready", 1);
        left::Handle::of(left::front(talk.pid())).signal(Signal::TERM);
        talk.end().with_code(5);
        std::fs::remove_file(pen.path("work/g")).unwrap();
    }
    pen.assert_nothing_left();
}

#[test]
fn left_behind_processes_end_and_are_named() {
    if !usable() {
        return;
    }
    let pen = Pen::new();
    for level in levels(&pen) {
        let ended =
            init(&pen, &["--contain", level, "bash", "-c", "setsid -f sleep 600; (sleep 600 &); exit 3"])
                .end();
        let ended = ended.with_code(3);
        assert!(ended.err().contains("ended 2 processes"), "{}", ended.err());
        assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    }
    pen.assert_nothing_left();
}

#[test]
fn killed_init_leaves_nothing_after_the_next_command() {
    if !usable() {
        return;
    }
    let pen = Pen::new();
    let talk = init(&pen, &["bash", "-c", "setsid -f sleep 600; echo ready; sleep 600; :"]);
    talk.hear("ready", 1);
    let records = left::entries(&pen.path("root/sandboxes"));
    assert_eq!(records.len(), 1, "{records:?}");
    left::Handle::of(left::front(talk.pid())).signal(Signal::KILL);
    talk.end();
    // Every process of the namespace is dead with its init; the record and the leaf wait for the next command.
    pen.end(["true"]).with_code(0);
    pen.assert_nothing_left();
}

#[test]
fn session_and_group_from_outside_of_the_namespace_do_no_harm() {
    if !tool(&["bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-pid", "true"]) {
        return;
    }
    let pen = Pen::new();
    let mut command = pen.command("bwrap");
    command.args(["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-pid", "--bind"]);
    command
        .arg(pen.path(""))
        .arg(pen.path(""))
        .arg(crate::support_e2::penfold())
        .arg("--root")
        .arg(pen.path("root"));
    let talk = Talk::start(command.args([
        "run",
        "bash",
        "-c",
        "setsid -f sleep 600; sleep 600 & echo ready; while :; do wait; done",
    ]));
    talk.hear("ready", 1);
    left::Handle::of(left::front(talk.pid())).signal(Signal::TERM);
    talk.end().with_code(143);
    pen.assert_nothing_left();
}
