//! Flags that the hand knows from docker and systemd, and defaults from files.

use std::os::unix::fs::PermissionsExt;

use crate::support::{Finished, Running, Sandbox, TestEnv, USER, Who, has_terminals, is_root};

/// spec: 5.19
#[test]
fn flags_of_an_interactive_docker_run_mean_what_is_so_anyway() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    for flags in [&["-i"][..], &["-it"], &["--rm", "-ti"], &["--interactive", "--tty"]] {
        let words = [&["run"], flags, &["sh", "-c", "read x; echo $x; exit 3"]].concat();
        let mut command = env.penfold(words);
        let mut running = Running::start(command.stdin(std::process::Stdio::piped()));
        running.say("word\n");
        let done = running.finish().with_code(3);
        assert_eq!(done.out(), "word\n", "{flags:?}");
    }
    env.run(["-d", "-i", "cat"]).refused(125, "--interactive");
    let id = env.call(["run", "-dit", "cat"]).with_code(0).out();
    env.call(["kill", id.trim()]).with_code(0);
}

/// spec: 5.19
#[test]
fn variables_come_from_files_too() {
    let env = TestEnv::new();
    std::fs::write(env.path("work/one"), "# comment\n\nA=of the file\nB=2\nHERE\n").unwrap();
    std::fs::write(env.path("work/two"), "B=3\r\n").unwrap();
    let mut command =
        env.run_command(["--env-file", "one", "--env-file=two", "-e", "A=1", "sh", "-c", "echo $A.$B.$HERE"]);
    let done = Running::start(command.env("HERE", "copied")).finish();
    assert_eq!(done.out(), "1.3.copied\n");
    let sandbox = env.detach(["sleep", "1000"]);
    let done = sandbox.call(&env, &["exec", "--env-file", "two", "ID", "sh", "-c", "echo $B"]).with_code(0);
    assert_eq!(done.out(), "3\n");
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    std::fs::write(env.path("work/wrong"), "A=1\nexport B=2\n").unwrap();
    env.run(["--env-file", "wrong", "true"]).refused(125, "line 2");
    env.run(["--env-file", "missing", "true"])
        .refused(125, "cannot read the environment variables of `missing`");
    env.assert_nothing_left();
}

/// spec: 5.19
#[test]
fn signals_grace_and_format_have_short_flags() {
    let env = TestEnv::new();
    let script = "trap 'exit 9' USR1; echo up >> $UP; while :; do sleep 0.05; done";
    let started = |flags: &[&str]| {
        let id = env.call([&["run", "-d"], flags, &["sh", "-c", script]].concat()).with_code(0).out();
        env.await_up(&["up"]);
        std::fs::write(env.path("work/up"), "").unwrap();
        Sandbox::printed(&env, &id)
    };
    let sandbox = started(&["-s", "USR1"]);
    sandbox.call(&env, &["stop", "--time", "30", "ID"]).with_code(0);
    assert_eq!(sandbox.call(&env, &["wait", "ID"]).code(), Some(9));
    let shown = sandbox.call(&env, &["inspect", "-f", "{{.ID}}", "ID"]).with_code(0).out();
    assert_eq!(shown.trim(), sandbox.id);
    let second = started(&["--name", "second"]);
    let ps = |words: &[&str]| env.call([&["ps", "-q"], words].concat()).with_code(0).out();
    assert_eq!(ps(&["-n", "1"]).trim(), second.id);
    assert_eq!(ps(&["-n", "2"]).lines().count(), 2);
    assert_eq!(ps(&["-a", "-f", "name=second"]).trim(), second.id);
    second.call(&env, &["kill", "ID"]).with_code(0);
    env.call(["reap", "-s", "INT", "-n", "--pgid", "2147483647"]).with_code(0);
}

/// spec: 11.10
#[test]
fn a_dry_run_lists_what_would_end_and_changes_nothing() {
    let env = TestEnv::new();
    let living = env.detach(["--name", "living", "sleep", "1000"]);
    let ended = env.detach(["--name", "ended", "true"]);
    ended.await_end();
    let line = format!("{}  living  sleep 1000\n", living.id);
    for words in
        [&["stop", "-n", "--all"][..], &["kill", "-n", "living"], &["stop", "--dry-run", "living", "ended"]]
    {
        assert_eq!(env.call(words).with_code(0).out(), line, "{words:?}");
    }
    assert_eq!(env.call(["rm", "-n", "ended"]).with_code(0).out(), format!("{}  ended  true\n", ended.id));
    env.call(["rm", "-n", "living"]).with_code(2);
    assert_eq!(env.call(["rm", "-qnf", "living"]).with_code(0).out(), format!("{}\n", living.id));
    env.call(["stop", "-n", "nobody"]).with_code(3);
    assert_eq!(env.listed(&["-a"]).len(), 2);
    assert!(living.leader().is_some());
    env.call(["rm", "-f", "--all"]).with_code(0);
    env.assert_nothing_left();
}

/// `penfold` with these words and a configuration, or none.
fn configured(env: &TestEnv, text: Option<&str>, words: &[&str]) -> Finished {
    let file = env.path("work/config.toml");
    let mut command = env.penfold(words);
    if let Some(text) = text {
        std::fs::write(&file, text).unwrap();
        command.env("PENFOLD_CONFIG", &file);
    }
    Running::start(&mut command).finish()
}

/// spec: 8.15
#[test]
fn files_set_defaults_and_flags_and_variables_go_before() {
    let env = TestEnv::new();
    let text = "[run]\nenv = { A = '1' }\nlabels = { team = 'x' }\nlease_ms = 3600000\n";
    let limited = &format!("{text}timeout_ms = 100\n");
    let done = configured(&env, Some(text), &["run", "sh", "-c", "echo $A"]).with_code(0);
    assert_eq!(done.out(), "1\n");
    configured(&env, Some(limited), &["run", "sleep", "1000"]).with_code(124);
    configured(&env, Some(limited), &["run", "--timeout", "0", "-e", "A=2", "sh", "-c", "test $A = 2"])
        .with_code(0);
    let id =
        configured(&env, Some(limited), &["run", "-d", "--timeout=0", "sleep", "1000"]).with_code(0).out();
    let row = env.call(["ps", "--json"]).json();
    assert_eq!(row[0]["labels"]["team"], "x", "{row}");
    assert!(row[0]["expires_at_ms"].is_u64(), "{row}");
    env.call(["rm", "-f", id.trim()]).with_code(0);
    // A file for one run goes before the defaults.
    std::fs::write(env.path("work/box.toml"), "command = ['sh', '-c', 'echo $A']\nenv = { A = '3' }\n")
        .unwrap();
    let done = configured(&env, Some(text), &["run", "--spec", "box.toml"]).with_code(0);
    assert_eq!(done.out(), "3\n");
    env.assert_nothing_left();
}

/// spec: 8.15
#[test]
fn the_users_file_goes_before_the_one_of_the_host() {
    let env = TestEnv::new();
    let home = env.path("work/home");
    std::fs::create_dir_all(home.join("penfold")).unwrap();
    std::fs::write(home.join("penfold/config.toml"), "[run]\nenv = { A = 'user' }\n").unwrap();
    let mut command = env.run_command(["sh", "-c", "echo $A"]);
    assert_eq!(Running::start(command.env("XDG_CONFIG_HOME", &home)).finish().out(), "user\n");
    std::fs::create_dir_all(home.join(".config")).unwrap();
    std::fs::rename(home.join("penfold"), home.join(".config/penfold")).unwrap();
    let mut command = env.run_command(["sh", "-c", "echo $A"]);
    assert_eq!(Running::start(command.env("HOME", &home)).finish().out(), "user\n");
    // A pipe that nobody writes to holds up nobody.
    let file = home.join(".config/penfold/config.toml");
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut command = env.run_command(["true"]);
    Running::start(command.env("HOME", &home)).finish().refused(125, "it is no regular file");
}

/// spec: 8.15
#[test]
fn a_wrong_file_stops_every_verb_with_its_line() {
    let env = TestEnv::new();
    for (text, why) in [
        ("\ncolour = 'auto'\n", "line 2: unknown field `colour`"),
        ("[run]\ntimeot_ms = 1\n", "line 2: unknown field `timeot_ms`"),
        ("root = 'relative'", "no absolute path"),
        ("[run]\nname = 'x'", "no two sandboxes share"),
    ] {
        configured(&env, Some(text), &["run", "touch", "ran"]).refused(125, why);
        configured(&env, Some(text), &["stop", "x"]).refused(2, why);
        assert!(!env.path("work/ran").try_exists().unwrap());
    }
    std::fs::set_permissions(env.path("work/config.toml"), PermissionsExt::from_mode(0o666)).unwrap();
    let file = env.path("work/config.toml");
    let mut command = env.run_command(["true"]);
    Running::start(command.env("PENFOLD_CONFIG", &file)).finish().refused(125, "every user may write to it");
    let mut command = env.run_command(["true"]);
    let missing = Running::start(command.env("PENFOLD_CONFIG", "/nowhere")).finish();
    missing.refused(125, "No such file or directory");
    let mut command = env.run_command(["true"]);
    Running::start(command.env("PENFOLD_CONFIG", "").env("HOME", env.path("work"))).finish().with_code(0);
    if is_root() {
        let Some(env) = TestEnv::of(Who::Plain) else { return };
        let file = env.path("work/config.toml");
        std::fs::write(&file, "[run]\n").unwrap();
        std::os::unix::fs::chown(&file, Some(USER + 1), None).unwrap();
        let mut command = env.run_command(["true"]);
        let done = Running::start(command.env("PENFOLD_CONFIG", &file)).finish();
        done.refused(125, &format!("it belongs to user {}", USER + 1));
        // A home directory may be that of another user.
        let home = env.path("work/home");
        std::fs::create_dir_all(home.join("penfold")).unwrap();
        std::fs::rename(&file, home.join("penfold/config.toml")).unwrap();
        let mut command = env.run_command(["true"]);
        Running::start(command.env("XDG_CONFIG_HOME", &home)).finish().with_code(0);
        std::fs::set_permissions(home.join("penfold"), PermissionsExt::from_mode(0o700)).unwrap();
        let mut command = env.run_command(["true"]);
        Running::start(command.env("XDG_CONFIG_HOME", &home)).finish().with_code(0);
    }
}

/// spec: 8.15
#[test]
fn the_state_root_comes_from_flag_variable_or_file() {
    let env = TestEnv::new();
    let call = |root: Option<&str>, text: &str, words: &[&str]| {
        std::fs::write(env.path("work/config.toml"), text).unwrap();
        let mut command = env.command(crate::support::penfold());
        command.args(words).env("PENFOLD_CONFIG", env.path("work/config.toml"));
        if let Some(root) = root {
            command.env("PENFOLD_ROOT", root);
        }
        Running::start(&mut command).finish()
    };
    let (one, two) = (env.path("root"), env.path("two"));
    let of_file = format!("root = '{}'\n", one.display());
    let id = call(None, &of_file, &["run", "-d", "sleep", "1000"]).with_code(0).out();
    let lists = |root: Option<&str>, words: &[&str]| {
        let listed = call(root, &of_file, &[words, &["ps", "--json"]].concat()).with_code(0).json();
        let own = listed.as_array().unwrap().iter().filter(|one| one["claimed"] == true);
        own.map(|one| one["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(env.listed_ids(&[]), [id.trim()]);
    assert_eq!(lists(None, &[]), [id.trim()]);
    assert_eq!(lists(two.to_str(), &[]), Vec::<String>::new());
    assert_eq!(lists(two.to_str(), &["--root", one.to_str().unwrap()]), [id.trim()]);
    env.call(["kill", id.trim()]).with_code(0);
    let mut command = env.command(crate::support::penfold());
    Running::start(command.args(["ps"]).env("PENFOLD_COLOR", "blue")).finish().refused(2, "PENFOLD_COLOR");
}

/// spec: 21.7
#[test]
fn guard_ignores_what_the_configuration_says() {
    let env = TestEnv::new();
    let path = env.path("work/daemon");
    std::fs::copy("/bin/sleep", &path).unwrap();
    let script = format!(
        "setsid {} 1000 >/dev/null 2>&1 & until grep -q daemon /proc/$!/comm; do sleep 0.01; done",
        path.display()
    );
    let guard = ["guard", "-t", "0s", "--", "sh", "-c", &script];
    let done = configured(&env, Some("[guard]\nignore = ['daemon']\n"), &guard).with_code(0);
    assert!(done.err().contains("reap --pid"), "{}", done.err());
    for process in env.find(path.to_str().unwrap()) {
        process.signal(rustix::process::Signal::KILL);
        process.await_end();
    }
    configured(&env, Some("[guard]\n"), &guard).with_code(123);
}
