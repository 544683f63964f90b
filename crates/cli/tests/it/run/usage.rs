//! The command line from outside: codes, where words go, what is printed.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output, Stdio};

fn penfold<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penfold"));
    command.args(args).stdin(Stdio::null());
    for key in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(key);
    }
    command
}

fn output<S: AsRef<OsStr>>(args: &[S]) -> Output {
    penfold(args).output().unwrap_or_else(|error| panic!("{error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One sentence, a hint at most, nothing on standard output, the documented code.
#[track_caller]
fn refused<S: AsRef<OsStr> + std::fmt::Debug>(args: &[S], code: i32, sentence: &str) {
    let output = output(args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some(format!("penfold: {sentence}").as_str()), "{args:?}");
    assert!(lines.all(|line| line.starts_with("hint: ")), "{args:?}: {said}");
}

const DURATION: &str = "accepted: `500ms`, `10s`, `5m`, `1h30m`, `1d`, or a number of seconds such as `0.3`";

#[test]
fn wrong_run_lines_exit_with_125() {
    refused(&["run"], 125, "missing `CMD`");
    refused(&["run", "--"], 125, "missing `CMD`");
    refused(&["run", "--bogus", "true"], 125, "unknown option or argument `--bogus`");
    refused(&["run", "-Z", "true"], 125, "unknown option or argument `-Z`");
    refused(&["--root", "/x", "run", "-Z", "true"], 125, "unknown option or argument `-Z`");
    refused(&["run", "--scratch=1", "true"], 125, "`--scratch` takes no value, but `1` was given");
    refused(&["run", "--timeout"], 125, "`--timeout` needs a value");
    refused(&["run", "-w", "", "true"], 125, "`--workdir` needs a value");
}

#[test]
fn wrong_values_say_what_is_accepted() {
    let value = |flag: &str, value: &str, problem: &str| {
        refused(
            &["run", flag, value, "true"],
            125,
            &format!("invalid value for `{flag}`: `{value}` {problem}"),
        );
    };
    value("--timeout", "soon", &format!("is not a duration; {DURATION}"));
    value("--timeout", "-5s", &format!("is negative; {DURATION}"));
    value("--grace", "99999999999999999999", &format!("is longer than 100 years; {DURATION}"));
    value("--contain", "jail", "is not known; accepted: auto, cgroup, pidns, subreaper");
    value("--on-owner-exit", "x", "is not known; accepted: kill, stop, keep");
    value(
        "--label",
        "x",
        "is not a label; accepted: `key=value`, the key like a name, the value up to 256 bytes",
    );
    value("--env", "=x", "names no variable; accepted: `KEY=VALUE`, or `KEY` to pass it on");
    for signal in ["0", "65", "NOPE", "-9"] {
        let output = output(&["run", "--signal", signal, "true"]);
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains("accepted: a name such as `TERM`"), "{}", text(&output.stderr));
    }
    for name in ["", "..", "a/b", "-x"] {
        let output = output(&["run", &format!("--name={name}"), "true"]);
        assert_eq!(output.status.code(), Some(125), "{name}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn wrong_lines_of_other_verbs_exit_with_2() {
    refused(&["reap"], 2, "missing one of `--pid`, `--pgid`, `--session`, `--cgroup`, `--env`");
    refused(&["reap", "--pid", "2", "--pgid", "3"], 2, "`--pid` cannot be used together with `--pgid`");
    refused(
        &["reap", "--pid", "-1"],
        2,
        "invalid value for `--pid`: `-1` is not a process number; accepted: a number from 1 to 2147483647",
    );
    refused(
        &["reap", "--env", "K"],
        2,
        "invalid value for `--env`: `K` is not a variable with its value; accepted: `KEY=VALUE`",
    );
    refused(&["gc", "--extra"], 2, "unknown option or argument `--extra`");
    refused(&["doctor", "--foreign-flag"], 2, "unknown option or argument `--foreign-flag`");
    refused(&["frobnicate"], 2, "unknown command `frobnicate`");
    refused(&["--frob"], 2, "unknown option or argument `--frob`");
    refused(&[""], 2, "unknown command ``");
    refused(&["help", "frobnicate"], 2, "no command or topic is called `frobnicate`");
}

#[test]
fn text_that_is_not_utf_8_is_refused_where_text_is_needed() {
    let odd = OsStr::from_bytes(b"\xff");
    refused(
        &[OsStr::new("run"), OsStr::new("--name"), odd],
        125,
        "an argument that has to be text is not UTF-8",
    );
    let output = output(&[odd]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn slips_of_the_finger_get_a_suggestion() {
    assert!(text(&output(&["runn", "x"]).stderr).ends_with("hint: did you mean `run`?\n"));
    assert!(
        text(&output(&["run", "--tmeout", "5", "x"]).stderr).ends_with("hint: did you mean `--timeout`?\n")
    );
}

#[test]
fn an_argument_cannot_write_to_the_terminal() {
    let output = output(&["run", "--x\u{1b}[2J\n"]);
    assert_eq!(
        output.stderr.iter().filter(|byte| byte.is_ascii_control()).count(),
        2,
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_bare_penfold_shows_the_help_and_fails() {
    for line in [&[][..], &["-q"]] {
        let output = output(line);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(text(&output.stdout), "");
        assert!(text(&output.stderr).contains("Usage: penfold [OPTIONS] <COMMAND>"));
    }
}

#[test]
fn every_verb_explains_itself_with_examples() {
    for verb in ["run", "reap", "doctor", "gc", "prune", "help", "version", "completions", "man"] {
        for line in [vec![verb, "--help"], vec!["help", verb], vec![verb, "-h"]] {
            let output = output(&line);
            let said = text(&output.stdout);
            assert!(output.status.success() && output.stderr.is_empty(), "{line:?}");
            assert!(
                said.contains("Usage: penfold ") && said.contains("Examples:\n  penfold "),
                "{line:?}: {said}"
            );
            assert!(!said.contains('\u{1b}'), "{line:?}");
        }
    }
}

#[test]
fn topics_and_versions_go_to_standard_output() {
    assert!(text(&output(&["help", "exit-codes"]).stdout).contains("\n  123    --fail-on-leak"));
    assert!(text(&output(&["help", "guarantees"]).stdout).contains("\n7. Every wait has a deadline"));
    assert_eq!(text(&output(&["help"]).stdout), text(&output(&["--help"]).stdout));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text(&output(&["version"]).stdout), format!("penfold {version}\n"));
    assert_eq!(text(&output(&["-V"]).stdout), format!("penfold {version}\n"));
    let json = format!("{{\"schema\":1,\"version\":\"{version}\"}}\n");
    assert_eq!(text(&output(&["version", "--json"]).stdout), json);
}

#[test]
fn colour_follows_the_flag_then_the_environment() {
    let coloured = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|error| panic!("{error}"));
        output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b)
    };
    for line in [&["--help"][..], &["help", "run"], &["run", "--bogus"]] {
        let with = |colour: &'static str| [&["--color", colour][..], line].concat();
        assert!(!coloured(&mut penfold(line)), "{line:?}");
        assert!(coloured(&mut penfold(&with("always"))), "{line:?}");
        assert!(coloured(penfold(line).env("CLICOLOR_FORCE", "1")), "{line:?}");
        assert!(!coloured(penfold(line).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1")), "{line:?}");
        assert!(coloured(penfold(&with("always")).env("NO_COLOR", "1")), "{line:?}");
        assert!(!coloured(penfold(&with("never")).env("CLICOLOR_FORCE", "1")), "{line:?}");
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    for line in [&["completions", "bash"][..], &["help", "run"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap_or_else(|error| panic!("{error}"));
        drop(reader);
        let output = penfold(line).stdout(writer).output().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(output.status.code(), Some(0), "{line:?}");
        assert_eq!(text(&output.stderr), "", "{line:?}");
    }
}

#[test]
fn a_full_disk_is_one_sentence() {
    for line in [&["help", "run"][..], &["--help"], &["version"]] {
        let full =
            std::fs::File::options().write(true).open("/dev/full").unwrap_or_else(|error| panic!("{error}"));
        let output = penfold(line).stdout(full).output().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        let said = text(&output.stderr);
        assert!(said.starts_with("penfold: cannot write to standard output: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_standard_error_that_is_gone_keeps_the_code() {
    let (reader, writer) = std::io::pipe().unwrap_or_else(|error| panic!("{error}"));
    drop(reader);
    let status =
        penfold(&["run", "--bogus"]).stderr(writer).status().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(125));
}

#[test]
fn manual_pages_are_written_for_every_verb() {
    let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let done = output(&[OsStr::new("man"), dir.path().as_os_str()]);
    assert!(done.status.success() && done.stdout.is_empty() && done.stderr.is_empty());
    for page in ["penfold", "penfold-run", "penfold-reap", "penfold-doctor", "penfold-gc"] {
        let mut roff = String::new();
        std::fs::File::open(dir.path().join(format!("{page}.1")))
            .and_then(|mut file| file.read_to_string(&mut roff))
            .unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(roff.contains(".SH SYNOPSIS") && roff.contains("Examples:"), "{page}");
    }
    refused(
        &["man", "/nonexistent"],
        1,
        "cannot write manual pages to `/nonexistent`: No such file or directory (os error 2)",
    );
}

#[test]
fn completions_know_the_verbs_in_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = output(&["completions", shell]);
        let script = text(&output.stdout);
        assert!(
            output.status.success() && script.contains("reap") && script.contains("fail-on-leak"),
            "{shell}"
        );
    }
}
