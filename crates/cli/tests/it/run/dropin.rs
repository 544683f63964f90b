//! `penfold run` in place of the command itself: streams, exit codes, descriptors, arguments.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::time::Duration;

use crate::support_e2::{Pen, Talk, levels, tool};

#[test]
fn exit_codes_are_the_commands() {
    let pen = Pen::new();
    for code in (0..=255).step_by(5).chain([1, 119, 123, 124, 126, 127]) {
        let ended = pen.end(["sh", "-c", &format!("exit {code}")]).with_code(code);
        assert_eq!((ended.out(), ended.err()), (String::new(), String::new()));
    }
    pen.assert_nothing_left();
}

#[test]
fn signals_that_end_the_command_are_128_and_more() {
    let pen = Pen::new();
    for level in levels(&pen) {
        for (signal, code) in
            [("TERM", 143), ("SEGV", 139), ("KILL", 137), ("HUP", 129), ("PIPE", 141), ("RTMIN+1", 163)]
        {
            let script = format!("ulimit -c 0; kill -{signal} $$; sleep 60");
            pen.end(["--contain", level, "bash", "-c", &script]).with_code(code);
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn streams_pass_through_unbuffered() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let script = "while read -r line; do echo \"<$line>\"; done; echo end >&2; exit 3";
        let mut command = pen.run(["--contain", level, "sh", "-c", script]);
        let mut talk = Talk::start(command.stdin(Stdio::piped()));
        for number in 1..=5 {
            talk.say(&format!("{number}\n"));
            talk.hear(&format!("<{number}>\n"), 1);
        }
        let ended = talk.end().with_code(3);
        assert_eq!(ended.err(), "end\n");
    }
    pen.assert_nothing_left();
}

#[test]
fn megabytes_pass_through_whole() {
    let pen = Pen::new();
    let script = "head -c 20000000 /dev/zero | $PF sh -c 'cat | cat' | $PF wc -c; exit ${PIPESTATUS[1]}";
    assert_eq!(pen.script(script).with_code(0).out().trim(), "20000000");
    pen.assert_nothing_left();
}

#[test]
fn reader_that_goes_away_ends_the_command_by_sigpipe() {
    let pen = Pen::new();
    let ended = pen.script("$PF yes | head -1; echo ${PIPESTATUS[@]}").with_code(0);
    assert_eq!((ended.out(), ended.err()), ("y\n141 0\n".to_owned(), String::new()));
    pen.assert_nothing_left();
}

#[test]
fn left_behind_holder_of_the_output_does_not_hang_the_reader() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let script = "setsid -f sleep 600; (sleep 600 &); sleep 600 & echo done; exit 3";
        // `end` reads to the end of both streams.
        let ended = pen.end(["--contain", level, "bash", "-c", script]).with_code(3);
        assert_eq!(ended.out(), "done\n");
        assert!(ended.err().contains("strays: ") && ended.err().contains("verified gone"), "{}", ended.err());
        assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    }
    pen.assert_nothing_left();
}

#[test]
fn three_strays_are_named_and_the_code_is_kept() {
    let pen = Pen::new();
    let script = "setsid sleep 1000 & (sleep 1000 &) ; sleep 1000 & exit 3";
    let ended = pen.end(["bash", "-c", script]).with_code(3);
    assert!(ended.err().contains("ended 3 processes"), "{}", ended.err());
    assert_eq!(ended.err().matches("(pid ").count(), 3, "{}", ended.err());
    pen.assert_nothing_left();
}

#[test]
fn silence_when_there_is_nothing_to_say() {
    let pen = Pen::new();
    let ended = pen.end(["sh", "-c", "true; sh -c true"]).with_code(0);
    assert_eq!((ended.out(), ended.err()), (String::new(), String::new()));
    let ended = pen.script("PF=${PF% run}; $PF -q run sh -c 'sleep 600 & exit 4'").with_code(4);
    assert_eq!((ended.out(), ended.err()), (String::new(), String::new()));
}

#[test]
fn leaks_are_123_only_where_the_command_succeeded() {
    let pen = Pen::new();
    pen.end(["--fail-on-leak", "sh", "-c", "sleep 600 & exit 0"]).with_code(123);
    pen.end(["--fail-on-leak", "sh", "-c", "sleep 600 & exit 5"]).with_code(5);
    pen.end(["--fail-on-leak", "true"]).with_code(0);
    pen.assert_nothing_left();
}

#[test]
fn descriptors_are_inherited() {
    let pen = Pen::new();
    let script =
        "echo four > four; $PF sh -c 'cat <&4; echo three >&3; echo nine >&9; : >&5' 3>three 4<four 9>nine";
    let ended = pen.script(&format!("{script}; cat three nine"));
    assert_eq!(ended.out(), "four\nthree\nnine\n");
    assert!(ended.err().contains('5'), "descriptor 5 was never there: {}", ended.err());
    pen.assert_nothing_left();
}

#[test]
fn no_descriptor_of_ours_reaches_the_command() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let names = "exec ls -l /proc/self/fd";
        let with = pen.end(["--contain", level, "sh", "-c", names]).with_code(0).out();
        let without = pen.script(names).with_code(0).out();
        let count = |text: &str| text.lines().filter(|line| line.contains(" -> ")).count();
        assert_eq!(count(&with), count(&without), "{with}\n{without}");
    }
}

#[test]
fn jobserver_of_make_is_passed_on() {
    if !tool(&["make", "--version"]) {
        return;
    }
    let pen = Pen::new();
    let inner =
        "all: a b c\na b c:\n\t@echo $@ >> started; while [ $$(wc -l < started) -lt 3 ]; do :; done\n";
    std::fs::write(pen.path("work/inner.mk"), inner).unwrap();
    std::fs::write(pen.path("work/outer.mk"), "all:\n\t+$(PF) $(MAKE) -f inner.mk\n").unwrap();
    // The three wait for each other: without the jobserver only one would run at a time.
    let ended = Talk::start(pen.command("make").args(["-j4", "-f", "outer.mk"])).end().with_code(0);
    assert!(!ended.err().contains("jobserver"), "{}", ended.err());
    pen.assert_nothing_left();
}

#[test]
fn closed_standard_streams_do_no_harm() {
    let pen = Pen::new();
    for (closed, code) in [("<&-", 3), (">&-", 3), ("2>&-", 3), ("<&- >&- 2>&-", 3)] {
        pen.script(&format!("$PF sh -c 'sleep 600 & exit 3' {closed}")).with_code(code);
    }
    pen.script("$PF no-such-command 2>&-").with_code(127);
    pen.script("$PF --report report sh -c 'exit 3' <&- >&- 2>&- ; code=$?; grep -q '\"verified\": true' report || exit 1; exit $code")
        .with_code(3);
    pen.assert_nothing_left();
}

#[test]
fn xargs_and_background_jobs_run_side_by_side() {
    let pen = Pen::new();
    let ended = pen.script("seq 20 | xargs -P 5 -n 1 $PF echo | sort -n | tr '\\n' ' '").with_code(0);
    assert_eq!(ended.out().trim(), (1..=20).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
    let script = "for i in 1 2 3 4; do $PF sh -c \"exit $i\" & pids=\"$pids $!\"; done; for p in $pids; do wait $p; echo $?; done";
    assert_eq!(pen.script(script).with_code(0).out(), "1\n2\n3\n4\n");
    pen.assert_nothing_left();
}

#[test]
fn words_and_variables_that_are_not_utf8_pass_through() {
    let pen = Pen::new();
    let odd = OsStr::from_bytes(b"\xff\xfe \n'");
    let mut command = pen.run(["sh", "-c", "printf '%s|%s' \"$1\" \"$ODD\"", "sh"]);
    let ended = Talk::start(command.arg(odd).env("ODD", odd)).end().with_code(0);
    assert_eq!(ended.out, b"\xff\xfe \n'|\xff\xfe \n'");
    let mut command = pen.run([
        OsStr::new("-e"),
        OsStr::from_bytes(b"OWN=\xfd"),
        OsStr::new("printenv"),
        OsStr::new("OWN"),
    ]);
    assert_eq!(Talk::start(&mut command).end().with_code(0).out, b"\xfd\n");
}

#[test]
fn thousands_of_words_pass_through() {
    let pen = Pen::new();
    let words = ["sh", "-c", "echo $#", "sh"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..30_000).map(|n| n.to_string()));
    assert_eq!(pen.end(words).with_code(0).out(), "30000\n");
    let large = "x".repeat(120_000);
    let ended = pen.end(["-e", &format!("LARGE={large}"), "sh", "-c", "echo ${#LARGE}"]).with_code(0);
    assert_eq!(ended.out(), "120000\n");
}

#[test]
fn variables_are_set_the_last_one_winning() {
    let pen = Pen::new();
    let show = "echo \"$A,$B,${C-unset},${D-unset}\"";
    let words = ["-e", "A=1", "-e", "A=2", "-e", "B", "-e", "C=", "-e", "D", "sh", "-c", show];
    let ended = Talk::start(pen.run(words).env("B", "caller's").env_remove("D")).end().with_code(0);
    assert_eq!(ended.out(), "2,caller's,,unset\n");
}

#[test]
fn options_end_at_the_command() {
    let pen = Pen::new();
    assert!(pen.end(["true", "--help"]).with_code(0).err().is_empty());
    assert_eq!(pen.end(["echo", "--timeout", "1", "--", "-e"]).with_code(0).out(), "--timeout 1 -- -e\n");
}

#[test]
fn children_that_penfold_had_before_it_was_penfold_stay_alive() {
    let pen = Pen::new();
    // exec keeps the children of the shell: they are no members, and not penfold's to end.
    let script =
        "sleep 601 & echo $! > before; exec $PF bash -c 'setsid -f sleep 600; (sleep 600 &); exit 3'";
    let outer =
        "bash -c \"$SCRIPT\"; code=$?; kill -0 $(cat before) && kill $(cat before) || code=99; exit $code";
    let ended = Talk::start(pen.command("bash").args(["-c", outer]).env("SCRIPT", script));
    let ended = ended.end().with_code(3);
    assert!(ended.err().contains("ended 2 processes"), "{}", ended.err());
    pen.assert_nothing_left();
}

#[test]
fn child_that_penfold_had_before_does_not_end_the_run_by_its_own_end() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let script = format!("(exit 9) & sleep 0.2 & exec $PF --contain {level} sh -c 'sleep 0.5; exit 3'");
        let ended = pen.script(&script).with_code(3);
        assert_eq!(ended.err(), "");
    }
    pen.assert_nothing_left();
}
