//! Commands that turn against their supervisor, and callers that hand over odd things.

use std::time::Duration;

use crate::support_e2::left::{Handle, entries, ours};
use crate::support_e2::{Pen, Talk, eventually, levels, penfold, root, tool};
use penfold_cgroup::Place;
use rustix::process::Signal;

/// Where `$C` is the command's cgroup, if the host has cgroup2 where most have it.
const LEAF: &str = "L=$(sed -n 's/^0:://p' /proc/self/cgroup); C=$(awk '$3 == \"cgroup2\" { print $2; exit }' \
                    /proc/mounts)$L; ";

#[track_caller]
fn nothing_is_left(pen: &Pen) {
    pen.assert_nothing_left();
    let Ok(place) = Place::find_here() else { return };
    let names: Vec<String> = entries(&pen.path("work"))
        .iter()
        .filter_map(|path| path.file_name()?.to_str()?.strip_prefix("id-").map(|id| format!("penfold-{id}")))
        .collect();
    for name in names {
        let leaf = place.path().join(&name);
        let gone = eventually(Duration::from_secs(3), || !leaf.try_exists().unwrap());
        assert!(gone, "left: {}", leaf.display());
    }
}

/// A script that leaves a file named after its sandbox, for the look afterwards.
fn script(text: &str) -> String {
    format!(": > id-$PENFOLD_SANDBOX; {text}")
}

#[test]
fn a_command_that_stops_its_supervisor_does_not_stop_the_clock() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let words = ["--contain", level, "--timeout", "0.5", "bash", "-c"];
        let stops = script("setsid -f sleep 600; kill -STOP $PPID; exec sleep 600");
        let ended = pen.end(words.iter().copied().chain([&*stops])).with_code(124);
        assert!(ended.took < Duration::from_secs(5), "{level}: {:?}", ended.took);
        nothing_is_left(&pen);
    }
}

#[test]
fn a_supervisor_that_is_stopped_again_and_again_still_ends_the_command() {
    let pen = Pen::new();
    // A pause in between, or two processors have nothing else to do.
    let stops = script("while :; do kill -STOP $PPID; sleep 0.001; done");
    pen.end(["--timeout", "0.5", "bash", "-c", &stops]).with_code(124);
    nothing_is_left(&pen);
}

#[test]
fn a_stopped_supervisor_wakes_up_when_the_front_is_killed() {
    let pen = Pen::new();
    let talk =
        Talk::start(&mut pen.run(["bash", "-c", &script("echo up; setsid -f sleep 600; exec sleep 600")]));
    talk.hear("up", 1);
    let supervisor = ours(talk.pid()).into_iter().find(|&pid| pid != talk.pid()).unwrap();
    // The front would wake it up at once.
    talk.signal(Signal::STOP);
    Handle::of(supervisor).signal(Signal::STOP);
    talk.signal(Signal::KILL);
    talk.end();
    nothing_is_left(&pen);
}

#[test]
fn an_alarm_that_the_caller_has_set_reaches_the_command() {
    if !tool(&["perl", "-e", "1"]) {
        return;
    }
    let pen = Pen::new();
    let mut command = pen.command("perl");
    command.args(["-e", "alarm 1; exec @ARGV"]).arg(penfold()).arg("--root").arg(pen.path("root"));
    Talk::start(command.args(["run", "sleep", "600"])).end().with_code(142);
    nothing_is_left(&pen);
}

#[test]
fn a_limit_on_the_size_of_files_hurts_only_who_writes_files() {
    let pen = Pen::new();
    pen.script("ulimit -f 0; exec $PF sleep 0.2").with_code(0);
    nothing_is_left(&pen);
}

#[test]
fn closed_standard_streams_are_no_trouble() {
    let pen = Pen::new();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let outcome = pen.script(&format!("$PF sh -c 'exit 5' {closed}"));
        assert_eq!(outcome.code(), Some(5), "{closed}: {}", outcome.err());
    }
    nothing_is_left(&pen);
}

#[test]
fn what_a_command_puts_into_its_record_goes_with_it() {
    let pen = Pen::new();
    let precious = pen.path("work/precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "x").unwrap();
    let litters = format!(
        "cd {}/$PENFOLD_SANDBOX; mkdir -p a/b; : > a/b/c; ln -s {} d; chmod 0 a; exit 3",
        pen.path("root/sandboxes").display(),
        precious.display()
    );
    pen.end(["bash", "-c", &litters]).with_code(3);
    nothing_is_left(&pen);
    assert!(precious.join("file").try_exists().unwrap());
}

#[test]
fn a_command_that_removes_its_record_is_ended_all_the_same() {
    let pen = Pen::new();
    let removes = format!("rm -rf {}; setsid -f sleep 600; exit 3", pen.path("root/sandboxes").display());
    pen.end(["bash", "-c", &script(&removes)]).with_code(3);
    nothing_is_left(&pen);
}

#[test]
fn a_command_line_of_a_mebibyte_is_recovered_like_any_other() {
    let pen = Pen::new();
    let long = "x".repeat(100_000);
    let text = script("echo up; exec sleep 600");
    let talk = Talk::start(
        &mut pen.run(["--scratch", "bash", "-c", &text].into_iter().chain(std::iter::repeat_n(&*long, 12))),
    );
    talk.hear("up", 1);
    let all: Vec<Handle> = ours(talk.pid()).into_iter().map(Handle::of).collect();
    // None of them is to act on the death of another, and be gone before its own turn.
    for process in &all {
        process.signal(Signal::STOP);
    }
    for process in all.iter().rev() {
        process.signal(Signal::KILL);
    }
    drop(talk);
    // One that comes before the last of them is dead finds the record still held.
    let gone = eventually(Duration::from_secs(5), || {
        pen.end(["sleep", "0.05"]);
        entries(&pen.path("tmp")).is_empty() && entries(&pen.path("root/sandboxes")).is_empty()
    });
    assert!(gone, "{:?}", entries(&pen.path("tmp")));
    nothing_is_left(&pen);
}

#[test]
fn a_command_that_takes_its_supervisor_into_its_cgroup_gets_its_own_code() {
    let pen = Pen::new();
    if !root() || pen.end(["--contain", "cgroup", "true"]).code() != Some(0) {
        return;
    }
    for below in ["", "/a/b"] {
        let takes = script(&format!(
            "{LEAF} mkdir -p $C{below}; echo $PPID > $C{below}/cgroup.procs || exit 9; setsid -f sleep 600; exit 3"
        ));
        pen.end(["--contain", "cgroup", "bash", "-c", &takes]).with_code(3);
        nothing_is_left(&pen);
    }
}

#[test]
fn a_command_that_leaves_its_cgroup_and_removes_it_is_ended() {
    let pen = Pen::new();
    if !root() || pen.end(["--contain", "cgroup", "true"]).code() != Some(0) {
        return;
    }
    let leaves = script(&format!(
        "{LEAF} echo $$ > ${{C%/*}}/cgroup.procs && rmdir $C || exit 9; setsid -f sleep 600; exit 3"
    ));
    pen.end(["--contain", "cgroup", "bash", "-c", &leaves]).with_code(3);
    nothing_is_left(&pen);
}

#[test]
fn cgroups_that_a_command_makes_go_with_it_frozen_or_not() {
    let pen = Pen::new();
    if !root() || pen.end(["--contain", "cgroup", "true"]).code() != Some(0) {
        return;
    }
    let makes = script(&format!(
        "{LEAF} mkdir -p $C/a/b/c $C/d; sleep 600 & echo $! > $C/a/b/cgroup.procs; sleep 600 & \
         echo $! > $C/d/cgroup.procs; echo 1 > $C/d/cgroup.freeze; exit 3"
    ));
    pen.end(["--contain", "cgroup", "bash", "-c", &makes]).with_code(3);
    nothing_is_left(&pen);
}
