//! The command line as a user sees it: exit codes, output streams, messages.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use crate::support::{Finished, Running, TestEnv, penfold};

/// `penfold` with these words and no others.
fn command<S: AsRef<OsStr>>(env: &TestEnv, words: &[S]) -> Command {
    let mut command = env.command(penfold());
    command.args(words);
    command
}

/// Runs `penfold` with these words to its end.
#[track_caller]
fn call<S: AsRef<OsStr>>(words: &[S]) -> Finished {
    Running::start(&mut command(&TestEnv::new(), words)).finish()
}

/// Checks for a failure that says exactly this sentence.
#[track_caller]
fn refused<S: AsRef<OsStr> + std::fmt::Debug>(words: &[S], code: i32, sentence: &str) {
    let finished = call(words);
    let said = finished.err();
    assert_eq!(said.lines().next(), Some(format!("penfold: {sentence}").as_str()), "{words:?}");
    finished.refused(code, sentence);
}

const DURATION: &str = "accepted: `500ms`, `10s`, `5m`, `1h30m`, `1d`, or a number of seconds such as `0.3`";

/// spec: 8.2
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
    for line in [&["--ttl", "5"][..], &["--idle-timeout", "5"]] {
        let finished = call(&[&["run"], line, &["true"]].concat());
        assert_eq!(finished.code(), Some(125), "{line:?}");
        let said = finished.err();
        assert!(said.contains("` works for detached sandboxes only\nhint: add `--detach`"), "{said}");
    }
    refused(
        &["run", "-d", "--report", "-", "true"],
        125,
        "`--report -` cannot be used together with `--detach`, which does not keep standard output",
    );
    refused(&["exec"], 125, "missing `ID` and `CMD`");
    refused(&["exec", "web"], 125, "missing `CMD`");
    refused(&["run", "/"], 126, "cannot run `/`: the path is a directory");
    refused(&["run", "-w", "/", "./tmp"], 126, "cannot run `./tmp`: the path is a directory");
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
    value("--env", "=x", "names no variable; accepted: `KEY=VALUE`, or `KEY` to copy the caller's value");
    for signal in ["0", "65", "NOPE", "-9"] {
        let finished = call(&["run", "--signal", signal, "true"]);
        assert_eq!(finished.code(), Some(125));
        assert!(finished.err().contains("accepted: a name such as `TERM`"), "{}", finished.err());
    }
    for name in ["", "..", "a/b", "-x"] {
        let finished = call(&["run", &format!("--name={name}"), "true"]);
        assert_eq!(finished.code(), Some(125), "{name}");
        assert_eq!(finished.out(), "");
    }
}

#[test]
fn wrong_lines_of_other_verbs_exit_with_2() {
    refused(&["reap"], 2, "missing one of `--pid`, `--pgid`, `--session`, `--cgroup`, `--env`, `--home`");
    refused(&["reap", "--pid", "2", "--home", "/x"], 2, "`--pid` cannot be used together with `--home`");
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
    for verb in ["logs", "status"] {
        let sentence =
            "invalid value for `--lines`: `x` is not a number; accepted: a whole number such as `20`";
        let code = if verb == "logs" { call(&[verb, "--bogus"]).code().unwrap() } else { 2 };
        refused(&[verb, "--lines", "x", "web"], code, sentence);
    }
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
    refused(&[OsStr::new("run"), OsStr::new("--name"), odd], 125, "an argument is not UTF-8");
    let finished = call(&[odd]);
    assert_eq!(finished.code(), Some(2));
}

#[test]
fn slips_of_the_finger_get_a_suggestion() {
    assert!(call(&["runn", "x"]).err().ends_with("hint: did you mean `run`?\n"));
    assert!(call(&["run", "--tmeout", "5", "x"]).err().ends_with("hint: did you mean `--timeout`?\n"));
}

/// spec: 8.2.3
#[test]
fn habits_from_other_tools_get_the_command_that_does_it_here() {
    let env = TestEnv::new();
    for (line, hint) in [
        (&["rnu", "x"][..], "did you mean `run`?"),
        (&["puase", "x"], "did you mean `pause`?"),
        (&["images"], "there are no images"),
        (&["history"], "`penfold report`"),
        (&["enter", "x"], "`penfold exec -it ID sh`"),
        (&["reap", "123"], "`penfold reap --pid 123`"),
        (&["kill", "-9", "x"], "`penfold kill -s 9 ID`"),
        (&["logs", "-5", "x"], "`penfold logs -n 5 ID`"),
        (&["logs", "--stdout", "x"], "each stream comes where the command wrote it"),
        (&["run", "-p", "3000:3000", "x"], "the ports of the host"),
        (&["run", "--volume", "a:b", "x"], "`--mount`"),
        (&["run", "--restart", "always", "x"], "`--restart on-failure`"),
        (&["run", "echo hi && ls"], "`penfold sh 'echo hi && ls'`"),
        (&["run", "FOO=1", "env"], "`-e 'FOO=1'`"),
    ] {
        let said = call(line).err();
        assert!(
            said.lines().any(|line| line.starts_with("hint: ") && line.contains(hint)),
            "{line:?}: {said}"
        );
    }
    // What is merely unknown gets no guess.
    for line in [&["zzz"][..], &["cp", "a", "b"], &["upgrade"]] {
        assert!(!call(line).err().contains("did you mean"), "{line:?}");
    }
    let sandbox = env.detach(["--name", "web", "sleep", "1066"]);
    let taken = env.run(["-d", "--name", "web", "true"]).with_code(125).err();
    assert!(
        taken.contains(&format!("hint: `--replace` stops it first; `penfold stop {}`", sandbox.id)),
        "{taken}"
    );
    let attached = env.call(["attach", "web"]).with_code(125).err();
    assert!(attached.contains(&format!("`penfold logs -f {}`", sandbox.id)), "{attached}");
    env.call(["rm", "-f", "web"]).with_code(0);
    env.assert_nothing_left();
}

/// None of these words ends anything elsewhere.
/// spec: 8.2
#[test]
fn harmless_words_do_not_lead_to_a_verb_that_ends_something() {
    const ENDING: [&str; 6] = ["kill", "stop", "rm", "reap", "gc", "prune"];
    let words = "pause unpause restart start create list show info up freeze thaw reload rename status-all \
        journal is-active list-units spot prunes-not reach room form";
    for word in words.split_whitespace() {
        let said = call(&[word]).err();
        let hint =
            said.lines().find(|line| line.starts_with("hint: ")).unwrap_or_else(|| panic!("{word}: {said}"));
        let typed: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
        let ending = typed.iter().flat_map(|typed| typed.split(' ')).find(|word| ENDING.contains(word));
        assert_eq!(ending, None, "{word}: {hint}");
    }
    assert!(call(&["kil", "x"]).err().ends_with("hint: did you mean `kill`?\n"));
    assert!(call(&["start"]).err().contains("`penfold run -d CMD`"));
}

/// spec: 5.1
#[test]
fn every_verb_refuses_a_state_root_that_is_empty_or_no_text() {
    let help = call(&["help", "all"]).out();
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let verbs: Vec<&str> =
        commands.filter_map(|line| line.strip_prefix("  ")?.split([' ', ',']).next()).collect();
    assert!(verbs.len() > 20, "{verbs:?}");
    for verb in verbs {
        for (root, problem) in
            [(OsStr::new(""), "names no directory"), (OsStr::from_bytes(b"/tmp/\xff"), "is not UTF-8")]
        {
            // What a verb needs, for want of which it would be refused as well.
            let needed: &[&str] = match verb {
                "ps" | "ports" | "tree" | "doctor" | "gc" | "metrics" | "events" | "report" | "version"
                | "help" | "serve" | "watch" | "mcp" => &[],
                "reap" => &["--pid", "5"],
                "completions" => &["bash"],
                "agent" => &["status"],
                "slurm" => &["prolog"],
                "exec" | "extend" => &["x", "5"],
                "adopt" | "keep" => &["5"],
                _ => &["x"],
            };
            let given = [OsStr::new("--root"), root, OsStr::new(verb)];
            let refused = call(&given.into_iter().chain(needed.iter().map(OsStr::new)).collect::<Vec<_>>());
            assert!(matches!(refused.code(), Some(2 | 125)), "{verb}: {}", refused.err());
            assert!(refused.err().contains(problem), "{verb}: {}", refused.err());
        }
    }
}

#[test]
fn an_argument_cannot_write_to_the_terminal() {
    let finished = call(&["run", "--x\u{1b}[2J\n"]);
    assert_eq!(finished.err.iter().filter(|byte| byte.is_ascii_control()).count(), 2, "{}", finished.err());
}

#[test]
fn a_bare_penfold_shows_the_help_and_fails() {
    for line in [&[][..], &["-q"]] {
        let finished = call(line);
        assert_eq!(finished.code(), Some(2));
        assert_eq!(finished.out(), "");
        assert!(finished.err().contains("Usage: penfold [OPTIONS] <COMMAND>"));
    }
}

/// spec: 8.18.1
#[test]
fn the_first_screen_fits_a_small_terminal() {
    for line in [&["--help"][..], &["-h"], &["help"]] {
        let told = call(line).with_code(0).out();
        assert!(told.lines().count() <= 24, "{told}");
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        for group in ["Run ", "Look ", "Act ", "Clean up ", "Connect "] {
            assert!(told.lines().any(|line| line.starts_with(group)), "{group}: {told}");
        }
        assert!(told.contains("penfold help all"), "{told}");
    }
    assert!(call(&["help", "all"]).with_code(0).out().contains("\n  guard-each "));
}

/// spec: 8.18.1
#[test]
fn the_short_help_of_run_has_every_option_and_explains_a_few() {
    let (short, long) =
        (call(&["run", "-h"]).with_code(0).out(), call(&["run", "--help"]).with_code(0).out());
    assert!(short.lines().count() <= 50, "{short}");
    let options = long.lines().filter_map(|line| {
        let word = line.trim_start().split(", ").last()?.split([' ', '[', '.']).next()?;
        word.strip_prefix("--").filter(|_| line.starts_with("  -") || line.starts_with("      --"))
    });
    let options: Vec<&str> = options.collect();
    assert!(options.len() > 50, "{options:?}");
    for option in options {
        let is_named = short.split([' ', '\n']).any(|word| {
            word.trim_end_matches(['=', '[']).split(['[', '=', ',']).next() == Some(&format!("--{option}"))
        });
        assert!(is_named, "--{option}: {short}");
    }
    // What every verb has is last.
    let at = |text: &str| long.find(text).unwrap();
    assert!(
        at("\nGlobal options:") > at("\nOptions for the end:") && at("\nGlobal options:") < at("\nExamples:")
    );
}

#[test]
fn every_verb_explains_itself_with_examples() {
    for verb in ["run", "reap", "doctor", "gc", "prune", "help", "version", "completions", "man"] {
        for line in [vec![verb, "--help"], vec!["help", verb], vec![verb, "-h"]] {
            let finished = call(&line);
            let said = finished.out();
            assert!(finished.status.success() && finished.err.is_empty(), "{line:?}");
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
    assert!(call(&["help", "exit-codes"]).out().contains("\n  123    --fail-on-leak"));
    assert!(call(&["help", "guarantees"]).out().contains("\n7. Every wait has a deadline"));
    assert_eq!(call(&["help"]).out(), call(&["--help"]).out());
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(call(&["version"]).out(), format!("penfold {version}\n"));
    assert_eq!(call(&["-V"]).out(), format!("penfold {version}\n"));
    let json = format!("{{\"schema\":1,\"version\":\"{version}\"}}\n");
    assert_eq!(call(&["version", "--json"]).out(), json);
}

#[test]
fn colour_follows_the_flag_then_the_environment() {
    let env = TestEnv::new();
    let coloured = |command: &mut Command| {
        let finished = Running::start(command).finish();
        finished.out.contains(&0x1b) || finished.err.contains(&0x1b)
    };
    for line in [&["--help"][..], &["help", "run"], &["run", "--bogus"]] {
        let with = |colour: &'static str| [&["--color", colour][..], line].concat();
        assert!(!coloured(&mut command(&env, line)), "{line:?}");
        assert!(coloured(&mut command(&env, &with("always"))), "{line:?}");
        assert!(coloured(command(&env, line).env("CLICOLOR_FORCE", "1")), "{line:?}");
        assert!(!coloured(command(&env, line).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1")), "{line:?}");
        assert!(coloured(command(&env, &with("always")).env("NO_COLOR", "1")), "{line:?}");
        assert!(!coloured(command(&env, &with("never")).env("CLICOLOR_FORCE", "1")), "{line:?}");
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    let env = TestEnv::new();
    for line in [&["completions", "bash"][..], &["help", "run"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let finished = Running::spawn(command(&env, line).stdout(writer).stderr(Stdio::piped())).finish();
        assert_eq!(finished.code(), Some(0), "{line:?}");
        assert_eq!(finished.err(), "", "{line:?}");
    }
}

#[test]
fn a_full_disk_is_one_sentence() {
    let env = TestEnv::new();
    for line in [&["help", "run"][..], &["--help"], &["version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let finished = Running::spawn(command(&env, line).stdout(full).stderr(Stdio::piped())).finish();
        assert_eq!(finished.code(), Some(1), "{line:?}");
        let said = finished.err();
        assert!(said.starts_with("penfold: cannot write to standard output: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_standard_error_that_is_gone_keeps_the_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let env = TestEnv::new();
    Running::spawn(command(&env, &["run", "--bogus"]).stderr(writer)).finish().with_code(125);
}

/// spec: 8.18
#[test]
fn manual_pages_are_written_for_every_verb() {
    let env = TestEnv::new();
    let dir = env.path("work");
    let finished = call(&[OsStr::new("man"), dir.as_os_str()]).with_code(0);
    assert!(finished.out.is_empty() && finished.err.is_empty());
    for page in ["penfold", "penfold-run", "penfold-reap", "penfold-doctor", "penfold-gc"] {
        let roff = std::fs::read_to_string(dir.join(format!("{page}.1"))).unwrap();
        assert!(roff.contains(".SH SYNOPSIS") && roff.contains("Examples:"), "{page}");
        for section in ["EXIT STATUS", "ENVIRONMENT", "FILES"] {
            assert!(
                roff.contains(&format!(".SH \"{section}\"")) || roff.contains(&format!(".SH {section}")),
                "{page}"
            );
        }
        assert_eq!(
            roff.contains("command was not found"),
            page != "penfold-gc" && page != "penfold-reap" && page != "penfold-doctor"
        );
    }
    for topic in ["config", "exit-codes", "guarantees", "remote"] {
        let roff = std::fs::read_to_string(dir.join(format!("penfold-{topic}.1"))).unwrap();
        let told = call(&["help", topic]).with_code(0).out();
        let first = told.split(['`', ':', '-']).next().unwrap();
        assert!(roff.contains(first), "{topic}: {roff}");
    }
    refused(
        &["man", "/nonexistent"],
        1,
        "cannot write manual pages to `/nonexistent`: No such file or directory (os error 2)",
    );
}

/// spec: 8.18
#[test]
fn completions_know_verbs_flags_sandboxes_filters_and_programs() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = call(&["completions", shell]).with_code(0).out();
        assert!(script.contains("PENFOLD_COMPLETE"), "{shell}: {script}");
    }
    let env = TestEnv::new();
    let web = env.detach(["--name", "web", "-l", "team=x", "sleep", "1000"]);
    let over = env.detach(["--name", "over", "true"]);
    over.await_end();
    std::fs::write(env.path("work/a-file"), "").unwrap();
    let complete = |words: &str| {
        let script = format!(
            "source <(\"$PENFOLD\" completions bash); penfold() {{ \"$PENFOLD\" \"$@\"; }}; COMP_WORDS=({words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _clap_complete_penfold penfold \"${{COMP_WORDS[COMP_CWORD]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut command = env.command("bash");
        Running::start(command.args(["-c", &script]).env("PENFOLD_ROOT", env.root()))
            .finish()
            .with_code(0)
            .out()
    };
    let offers = |words: &str, word: &str| complete(words).lines().any(|line| line.trim() == word);
    assert!(offers("penfold re", "reap") && offers("penfold re", "report"));
    assert!(offers("penfold run --fail", "--fail-on-leak"));
    assert!(offers("penfold stop ''", "web") && offers("penfold stop ''", &web.id));
    assert!(!offers("penfold stop ''", "over") && offers("penfold rm ''", "over"));
    assert!(offers(&format!("penfold exec {}", &web.id[..6]), &web.id));
    assert!(offers("penfold logs over w", "web"));
    assert!(offers("penfold ps --filter st", "status=orphaned"));
    assert!(offers("penfold ps -f label", "label=team=x"));
    assert!(offers("penfold help ex", "exit-codes") && offers("penfold help ex", "exec"));
    assert!(offers("penfold run slee", "sleep") && offers("penfold run -- cat a-f", "a-file"));
    assert!(offers("penfold exec web /bin/sle", "/bin/sleep"));
    assert!(offers("penfold run --contain pid", "pidns"));
    assert!(!offers("penfold --root /nonexistent stop w", "web"));
    // The variable keeps nobody from work.
    let mut command = env.run_command(["sh", "-c", "echo ran"]);
    assert_eq!(Running::start(command.env("PENFOLD_COMPLETE", "1")).finish().out(), "ran\n");
    env.call(["kill", "web"]).with_code(0);
}
