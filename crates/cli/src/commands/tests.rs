//! What a command line means; what is wrong with one is tested from outside in `tests/usage.rs`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::FromArgMatches as _;
use penfold_request::Containment;
use proptest::prelude::*;

use super::command_line::{Call, parse, parse_verb, root};
use super::run::RunArgs;
use super::{find, run, verbs};
use crate::args::usage::{self, read};
use crate::args::verb::Global;
use crate::output::Colour;

fn words<S: AsRef<OsStr>>(words: &[S]) -> Vec<OsString> {
    std::iter::once(OsStr::new("penfold"))
        .chain(words.iter().map(AsRef::as_ref))
        .map(OsStr::to_owned)
        .collect()
}

fn understood(line: &[OsString]) -> Option<Call> {
    parse(|| line.iter().cloned()).ok()
}

fn run_args<S: AsRef<OsStr>>(line: &[S]) -> RunArgs {
    let call = understood(&words(line)).unwrap_or_else(|| panic!("not understood"));
    assert_eq!(call.verb.name, "run");
    read(call.verb, call.matches).unwrap_or_else(|failure| panic!("{failure:?}"))
}

#[test]
fn definitions_hold_together() {
    let mut root = root();
    root.build();
    root.clone().debug_assert();
    for verb in verbs() {
        let command = root.find_subcommand(verb.name).unwrap_or_else(|| panic!("{}", verb.name));
        assert!(command.get_after_help().is_some() && command.get_long_about().is_some(), "{}", verb.name);
        assert!((2..=7).contains(&verb.examples.len()), "{}", verb.name);
    }
}

#[test]
fn internal_verbs_are_read_and_not_shown() {
    for verb in super::INTERNAL_VERBS {
        assert!(root().find_subcommand(verb.name).is_none(), "{}", verb.name);
        let (example, _) = verb.examples[0];
        let line: Vec<&str> = example.split_whitespace().skip(1).collect();
        assert_eq!(understood(&words(&line)).map(|call| call.verb.name), Some(verb.name));
        let wrong = parse(|| words(&[verb.name, "--no-such-option"]).into_iter());
        assert_eq!(wrong.err().map(|error| error.kind()), Some(clap::error::ErrorKind::UnknownArgument));
    }
}

#[test]
fn examples_of_the_help_are_understood() {
    for verb in verbs() {
        for (example, _) in verb.examples {
            let line: Vec<&str> =
                example.split(['|', '>', '&']).next().unwrap_or("").split_whitespace().collect();
            assert_eq!(line.first(), Some(&"penfold"), "{example}");
            let call = understood(&words(&line[1..]));
            assert_eq!(call.map(|call| call.verb.name), Some(verb.name), "{example}");
        }
    }
}

#[test]
fn options_end_at_the_first_word_that_is_none() {
    for (line, expected) in [
        (&["run", "sh", "-c", "exit 3"][..], &["sh", "-c", "exit 3"][..]),
        (&["run", "--", "sh", "-c", "exit 3"], &["sh", "-c", "exit 3"]),
        (&["run", "x", "--help"], &["x", "--help"]),
        (&["run", "x", "--timeout", "abc", "-q"], &["x", "--timeout", "abc", "-q"]),
        (&["run", "x", "--", "y"], &["x", "--", "y"]),
        (&["run", "--", "x", "--", "y"], &["x", "--", "y"]),
        (&["run", "--", "--", "y"], &["--", "y"]),
        (&["run", "--", "--help"], &["--help"]),
        (&["run", "-q", "run", "--", "run"], &["run", "--", "run"]),
        (&["run", "-", "-h"], &["-", "-h"]),
        (&["run", ""], &[""]),
        (&["run", "x", "", "-V"], &["x", "", "-V"]),
        (&["-q", "run", "--root", "/x", "x", "--", "--root"], &["x", "--", "--root"]),
    ] {
        assert_eq!(run_args(line).command, expected, "{line:?}");
    }
}

#[test]
fn a_command_keeps_every_byte() {
    let odd = OsStr::from_bytes(b"-\xff=\n\xc3");
    let args = run_args(&[
        OsStr::new("run"),
        OsStr::new("-e"),
        OsStr::from_bytes(b"K=\xfe"),
        odd_command(),
        odd,
        odd,
    ]);
    assert_eq!(args.command, [odd_command(), odd, odd]);
    assert_eq!(args.bounds.env().unwrap()[0].value.as_deref(), Some(OsStr::from_bytes(b"\xfe")));
}

fn odd_command() -> &'static OsStr {
    OsStr::from_bytes(b"\x80\xff")
}

#[test]
fn run_without_options_has_the_defaults_of_the_contract() {
    let args = run_args(&["run", "x"]);
    assert_eq!(args.bounds.timeout(), None);
    assert_eq!(args.bounds.grace, Duration::from_secs(10));
    assert_eq!(args.bounds.signal(), 15);
    assert_eq!((args.contain, args.on_owner_exit), (Containment::Auto, None));
    assert!(!args.bounds.preserve_status && !args.scratch && !args.fail_on_leak);
    assert!(
        args.bounds.env().unwrap().is_empty()
            && args.label.is_empty()
            && args.name.is_none()
            && args.report.is_none()
    );
}

#[test]
fn the_last_of_a_repeated_option_wins_and_lists_grow() {
    let args = run_args(&[
        "run",
        "--timeout",
        "1",
        "--timeout=2m",
        "-e",
        "A=1",
        "-eB",
        "-l",
        "a=1",
        "-l",
        "b=",
        "x",
    ]);
    assert_eq!(args.bounds.timeout(), Some(Duration::from_mins(2)));
    assert_eq!((args.bounds.env().unwrap().len(), args.label.len()), (2, 2));
}

#[test]
fn a_timeout_of_zero_is_no_limit() {
    for zero in ["0", "0s", "0.0", "0h0m"] {
        assert_eq!(run_args(&["run", "--timeout", zero, "x"]).bounds.timeout(), None);
    }
}

#[test]
fn global_flags_stand_on_either_side_of_the_verb() {
    for line in [
        ["--root", "/r", "-vv", "--color=never", "version"],
        ["version", "--root", "/r", "-vv", "--color=never"],
        ["--color=never", "version", "--root", "/r", "-vv"],
    ] {
        let global = understood(&words(&line)).unwrap_or_else(|| panic!("{line:?}")).global;
        assert_eq!(global.root.as_deref(), Some(std::path::Path::new("/r")), "{line:?}");
        assert_eq!((global.verbose, global.color, global.quiet), (2, Colour::Never, false), "{line:?}");
    }
}

#[test]
fn words_of_others_are_no_verbs_of_ours() {
    for (word, _) in usage::FOREIGN {
        assert!(find(word).is_none(), "{word}");
    }
    for word in usage::ENDING {
        assert!(find(word).is_some(), "{word}");
    }
}

/// Every way to say what the short way may read.
fn run_line() -> impl Strategy<Value = Vec<String>> {
    let option = prop_oneof![
        "--(timeout|grace|signal|contain|color|name|root|report|workdir)(=[a-z0-9]{1,4})?",
        "--(memory|pids|ttl|log-size|spare|user|workspace|sockets|on-supervisor-exit|ready-timeout)(=[a-z0-9]{1,4})?",
        "-[qvehVwldtisu]{1,3}",
        "--(scratch|quiet|help|fail-on-leak|preserve-status|netns|keep|allow-outside|no-seccomp|--)",
        "(10s|TERM|cgroup|K=V|9|auto|)",
        "[a-z-]{0,8}",
    ];
    let before = prop_oneof![
        "--(root|color|token-file|host)(=(never|/x|unix:/x))?",
        "(-q|--quiet|-v|-qv|never|/x|unix:/x)"
    ];
    (
        prop::collection::vec(before, 0..4),
        prop_oneof!["run", "reap", "gc", "prune", "doctor", "version"],
        prop::collection::vec(option, 0..7),
    )
        .prop_map(|(before, verb, line)| before.into_iter().chain([verb]).chain(line).collect())
}

proptest! {
    #[test]
    fn the_short_way_reads_what_the_whole_definition_reads(line in run_line()) {
        let line = words(&line);
        let Some(short) = parse_verb(|| line.iter().skip(1).cloned()) else { return Ok(()) };
        let mut matches = root().try_get_matches_from(&line).unwrap_or_else(|error| panic!("{error}"));
        let (name, long) = matches.remove_subcommand().unwrap_or_else(|| panic!("no verb"));
        prop_assert_eq!(find(&name).map(|verb| verb.name), Some(short.verb.name));
        let global = Global::from_arg_matches(&long).unwrap_or_else(|error| panic!("{error}"));
        prop_assert_eq!(format!("{global:?}"), format!("{:?}", short.global));
        if name == "run" {
            let long: RunArgs = read(&run::VERB, long).unwrap_or_else(|failure| panic!("{failure:?}"));
            let short: RunArgs = read(&run::VERB, short.matches).unwrap_or_else(|failure| panic!("{failure:?}"));
            prop_assert_eq!(format!("{long:?}"), format!("{short:?}"));
        }
    }
}
