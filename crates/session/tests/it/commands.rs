//! What commands print, how they end, and what of them persists.

use penfold_session::{EndKind, ShellCommand};

use crate::support::{Session, run, sh};
use crate::table::{FUNCTIONS, TABLE};

/// Runs all cases this often, all in one session. Only some rounds have the case with large output.
fn check(rounds: usize, is_in_full: bool) {
    let session = Session::start();
    let mut client = session.connect();
    for round in 0..rounds {
        for (index, case) in TABLE.iter().enumerate() {
            if case.out.1 > 1 && round > 0 && !is_in_full {
                continue;
            }
            let done = sh(&mut client, case.text);
            let end = &done.end;
            let place = format!("round {round}, case {index}: {:?}: {end:?}: {:?}", case.text, done.err());
            let how = if case.ends_shell { EndKind::ShellExited } else { EndKind::Exited };
            assert_eq!((end.how, end.code), (how, case.code), "{place}");
            let out = case.out();
            assert!(done.out == out.as_bytes(), "{place}: {:.200}", done.out());
            assert!(case.fits(&done.err()), "{place}");
            assert!(!end.replaced, "{place}");
            assert_eq!(end.stdout_bytes, u64::try_from(out.len()).unwrap(), "{place}");
            let next = sh(&mut client, "echo usable");
            assert_eq!(next.out(), "usable\n", "after {place}: {next:?}");
            assert_eq!((next.end.how, next.end.code), (EndKind::Exited, 0), "after {place}");
        }
    }
}

/// spec: 13.15
#[test]
fn table_of_commands_holds() {
    check(4, false);
}

/// spec: 13.15
#[test]
#[ignore = "takes long"]
fn table_of_commands_holds_fifty_times_in_full() {
    check(50, true);
}

/// spec: 13.15
#[test]
#[ignore = "takes long"]
fn table_of_commands_holds_fifty_times_more_in_full() {
    check(50, true);
}

#[test]
fn shell_keeps_what_commands_set() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "x=5; export y=7; f() { echo f$x$1; }; alias greet='echo hello'; cd /usr; set -- a b");
    let done = sh(&mut client, "f 1; echo $y; greet; pwd; echo $2 $#; echo $FROM_HOST");
    assert_eq!(done.out(), "f51\n7\nhello\n/usr\nb 2\n1\n");
    sh(&mut client, "(exit 9)");
    assert_eq!(sh(&mut client, "echo $?").out(), "9\n");
}

#[test]
fn variables_of_one_command_are_restored() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "export was=\"it's old\"; plain=p; readonly fixed=f");
    let env =
        ["was", "plain", "fresh", "fixed"].map(|name| (name.to_owned(), "it's \"new\" $x\n2".to_owned()));
    let with = ShellCommand {
        env: env.to_vec(),
        ..ShellCommand::new("env -0 | grep -zE '^(was|plain|fresh|fixed)=' | sort -z")
    };
    let done = run(&mut client, &with);
    assert_eq!(
        done.out(),
        "fresh=it's \"new\" $x\n2\0plain=it's \"new\" $x\n2\0was=it's \"new\" $x\n2\0",
        "{done:?}"
    );
    let after = sh(
        &mut client,
        "echo $was; echo $plain; echo ${fresh-unset} $fixed; env | grep -cE '^(plain|fresh)='; compgen -v __penfold",
    );
    assert_eq!(after.out(), "it's old\np\nunset f\n0\n");
    for bad in ["", "1a", "a b", "a=b", "ä"] {
        let run = ShellCommand { env: vec![(bad.to_owned(), String::new())], ..ShellCommand::new("true") };
        assert!(client.run(&run).is_err(), "{bad:?}");
    }
}

#[test]
fn directory_of_one_command_is_restored() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "mkdir -p \"it's a dir\"; ln -s \"it's a dir\" link; cd link; cd ..; cd link");
    let here = sh(&mut client, "pwd").out();
    assert!(here.ends_with("/link\n"), "{here}");
    let there = ShellCommand { cwd: Some("/usr".to_owned()), ..ShellCommand::new("pwd; (exit 5)") };
    let done = run(&mut client, &there);
    assert_eq!((done.out().as_str(), done.end.code), ("/usr\n", 5));
    assert_eq!(sh(&mut client, "echo $?; pwd").out(), format!("5\n{here}"));
    let missing = ShellCommand { cwd: Some("/no/such's".to_owned()), ..ShellCommand::new("echo ran") };
    let done = run(&mut client, &missing);
    assert_eq!((done.out().as_str(), done.end.code), ("", 1));
    assert_eq!(done.err(), "Failed to change directory to '/no/such's'\n");
    assert_eq!(sh(&mut client, "pwd").out(), here);
    assert!(client.run(&ShellCommand { cwd: Some("/\0".to_owned()), ..ShellCommand::new("true") }).is_err());
}

#[test]
fn status_of_the_last_command_is_visible_in_a_wrapped_one() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "(exit 9)");
    let wrapped = ShellCommand {
        cwd: Some("/".to_owned()),
        env: vec![("a".to_owned(), "b".to_owned())],
        ..ShellCommand::new("echo $? $a $PWD")
    };
    assert_eq!(run(&mut client, &wrapped).out(), "9 b /\n");
    sh(&mut client, "set -eu; trap 'echo trapped' ERR");
    assert_eq!(run(&mut client, &wrapped).out(), "0 b /\n");
    let done = run(&mut client, &ShellCommand { command: "false; echo more".to_owned(), ..wrapped });
    assert_eq!((done.end.how, done.end.code, done.out().as_str()), (EndKind::ShellExited, 1, "trapped\n"));
}

#[test]
fn nul_in_a_command_is_refused() {
    let session = Session::start();
    let mut client = session.connect();
    let refused = client.run(&ShellCommand::new("echo a\0b")).expect_err("refused");
    assert!(refused.to_string().contains("NUL"), "{refused}");
    assert_eq!(sh(&mut client, "echo ok").end.number, 1);
}

#[test]
fn long_command_runs() {
    let session = Session::start();
    let mut client = session.connect();
    let word = "x".repeat(1 << 20);
    let done = sh(&mut client, &format!("echo {word} | wc -c"));
    assert_eq!(done.out().trim(), ((1 << 20) + 1).to_string());
    let lines = "echo y\n".repeat(10_000);
    assert_eq!(sh(&mut client, &lines).end.stdout_bytes, 20_000);
}

#[test]
fn large_output_is_kept_whole() {
    let session = Session::start();
    let mut client = session.connect();
    let done = sh(&mut client, "head -c 50000000 /dev/zero; echo end >&2");
    assert_eq!((done.end.stdout_bytes, done.end.truncated_bytes), (50_000_000, 0), "{:?}", done.end);
    assert_eq!((done.out.len(), done.err().as_str()), (50_000_000, "end\n"));
}

#[test]
fn output_beyond_the_limit_is_counted() {
    let session = Session::start();
    let mut client = session.connect();
    let small =
        ShellCommand { output_limit: Some(1 << 20), ..ShellCommand::new("head -c 10000000 /dev/zero") };
    let done = run(&mut client, &small);
    let kept = u64::try_from(done.out.len()).unwrap();
    assert_eq!(done.end.stdout_bytes, 10_000_000);
    assert_eq!(done.end.truncated_bytes, 10_000_000 - kept);
    assert!((500_000..=1 << 20).contains(&kept), "{kept}");
    let exact = run(
        &mut client,
        &ShellCommand { output_limit: Some(1 << 20), ..ShellCommand::new("head -c 100000 /dev/zero") },
    );
    assert_eq!((exact.end.truncated_bytes, exact.out.len()), (0, 100_000));
    let last =
        run(&mut client, &ShellCommand { output_limit: Some(1 << 16), ..ShellCommand::new("seq 100000") });
    assert!(last.out().ends_with("99999\n100000\n"), "the end is kept");
}

#[test]
fn background_job_goes_on_and_can_be_waited_for() {
    let session = Session::start();
    let mut client = session.connect();
    let done = sh(&mut client, "(sleep 0.3; exit 6) & echo $!");
    assert_eq!((done.end.how, done.end.code), (EndKind::Exited, 0));
    let pid = done.out().trim().to_owned();
    assert!(sh(&mut client, "jobs").out().contains("Running"));
    assert_eq!(sh(&mut client, "echo $!").out().trim(), pid);
    assert_eq!(sh(&mut client, &format!("wait {pid}; echo $?")).out(), "6\n");
}

#[test]
fn noisy_background_job_neither_blocks_nor_shows() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "while :; do echo noise; echo noise >&2; done & true");
    for _ in 0..20 {
        assert_eq!(sh(&mut client, "echo quiet").out(), "quiet\n");
    }
    assert_eq!(sh(&mut client, "kill %1; wait %1; echo $?").out(), "143\n");
}

#[test]
fn shell_that_ignores_its_lines_is_replaced() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "export kept=yes; cd /usr");
    let done = sh(&mut client, "set -n");
    assert_eq!((done.end.how, done.end.replaced), (EndKind::ShellExited, true), "{done:?}");
    assert_eq!(sh(&mut client, "echo $kept; pwd").end.how, EndKind::Exited);
}

#[test]
fn shell_without_builtins_is_replaced_and_says_so_once() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "export kept=yes; cd /usr");
    assert_eq!(sh(&mut client, "builtin() { :; }").end.how, EndKind::Exited);
    let done = sh(&mut client, "echo ran");
    assert_eq!((done.end.how, done.end.code, done.end.began), (EndKind::ShellExited, 137, false), "{done:?}");
    assert_eq!(sh(&mut client, "echo $kept; pwd").out(), "yes\n/usr\n");
}

#[test]
fn directory_and_variables_of_one_command_need_no_name_that_a_function_has() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, &format!("{FUNCTIONS}\nprintf() {{ .; }}"));
    let env = vec![("A".to_owned(), "1".to_owned())];
    let done = run(
        &mut client,
        &ShellCommand { cwd: Some("/usr".to_owned()), env, ..ShellCommand::new("echo $A $PWD; f") },
    );
    assert_eq!((done.out().as_str(), done.err().as_str(), done.end.code), ("1 /usr\n", "", 5));
    let nowhere = ShellCommand { cwd: Some("/nowhere".to_owned()), ..ShellCommand::new("echo ran") };
    let done = run(&mut client, &nowhere);
    let said = "Failed to change directory to '/nowhere'\n";
    assert_eq!((done.out().as_str(), done.err().as_str(), done.end.code), ("", said, 1));
    assert_eq!(sh(&mut client, "echo $? ${A-unset}").out(), "1 unset\n");
}

#[test]
fn shell_killed_while_idle_ends_the_next_command_once() {
    let session = Session::start();
    let mut client = session.connect();
    let pid = sh(&mut client, "echo $$").out();
    let pid = penfold_process::pid_from_raw(pid.trim().parse().unwrap()).unwrap();
    let mut proc = penfold_process::ProcFs::open().unwrap();
    let shell = penfold_process::Process::open(&mut proc, pid).unwrap().unwrap();
    shell.signal(penfold_process::Signal::KILL).unwrap();
    crate::support::until("the shell is reaped", || proc.stat(pid).unwrap().is_none());
    let done = sh(&mut client, "echo ran");
    assert_eq!((done.end.how, done.end.code, done.end.began), (EndKind::ShellExited, 137, false));
    assert_eq!(sh(&mut client, "echo ran").out(), "ran\n");
}

#[test]
fn snapshot_is_the_state_after_the_last_command() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "export a=1; f() { echo f; }; alias l='echo l'; plain=2; cd /usr");
    crate::support::until("the state is written", || client.snapshot().unwrap().number == 1);
    let snapshot = client.snapshot().unwrap();
    assert_eq!(snapshot.cwd, std::path::Path::new("/usr"));
    let state = std::fs::read_to_string(client.state_path(&snapshot)).unwrap();
    assert!(state.contains("a=\"1\"") && state.contains("f ()") && state.contains("alias l="), "{state}");
    assert!(!state.contains("plain"), "{state}");
}
