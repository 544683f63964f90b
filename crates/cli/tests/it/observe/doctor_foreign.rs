//! `penfold doctor --foreign` and `penfold gc --foreign`: what other tools left behind, shown, and ended only when named.

use std::net::TcpListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Process, Running, TestEnv, is_our_name, wait_until};

/// A process that a careless tool left behind; killed when dropped.
pub(super) struct Stray(Process);

impl Stray {
    /// Leaves `sleep SECONDS` behind: in a session of its own, given to init by the kernel.
    fn leave(env: &TestEnv, seconds: &str, environment: &[(&str, &str)]) -> Stray {
        Stray::leave_in(env, seconds, &env.path("tmp"), environment)
    }

    /// As [`Stray::leave`], in a directory.
    pub(super) fn leave_in(
        env: &TestEnv,
        seconds: &str,
        directory: &Path,
        environment: &[(&str, &str)],
    ) -> Stray {
        // Orphans of a subreaper would come to this process, which is no init.
        rustix::process::set_child_subreaper(None).unwrap();
        let mut command = env.command("bash");
        command.args(["-c", &format!("(setsid sleep {seconds} >&- 2>&- & echo $!)")]);
        command.envs(environment.iter().copied()).current_dir(directory);
        let pid = Running::start(&mut command).finish().with_code(0).out().trim().parse().unwrap();
        let stray = Stray(Process::find(pid).unwrap());
        wait_until("it runs", || stray.0.command_line().starts_with("sleep "));
        stray
    }

    pub(super) fn pid(&self) -> i32 {
        self.0.pid()
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
    }
}

/// The pid of a process that has ended, in the environment of those that it started.
fn dead_owner(env: &TestEnv) -> String {
    let owner = Running::start(&mut env.command("true"));
    let pid = owner.pid().to_string();
    owner.finish().with_code(0);
    pid
}

fn strays(env: &TestEnv) -> Vec<Value> {
    env.call(["doctor", "--foreign", "--json"]).json()["foreign"]["strays"].as_array().unwrap().clone()
}

pub(super) fn stray(env: &TestEnv, pid: i32) -> Option<Value> {
    strays(env).into_iter().find(|stray| stray["pid"] == pid)
}

/// spec: 5.11
#[test]
fn strays_are_shown_with_what_a_person_needs_and_others_are_not() {
    let env = TestEnv::new();
    let dead = dead_owner(&env);
    let alive = std::process::id().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Inherited by all that is started from here on.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let environment = [("VSCODE_PID", dead.as_str()), ("CLAUDECODE", "1"), ("CLAUDE_TOKEN", "hidden")];
    let left = Stray::leave(&env, "3501", &environment);
    let innocent = Running::start(env.command("sleep").arg("3502").env("VSCODE_PID", &alive));
    let held = Running::start(env.command("setsid").args(["sleep", "3503"]).env("CURSOR_PID", &alive));

    let found = stray(&env, left.pid()).unwrap_or_else(|| panic!("{:?}", strays(&env)));
    assert_eq!(found["directory"], env.path("tmp").display().to_string(), "{found}");
    assert_eq!(found["ports"][0]["port"], listener.local_addr().unwrap().port(), "{found}");
    assert_eq!(
        (&found["marks"][0]["key"], &found["marks"][0]["owner"]),
        (&"VSCODE_PID".into(), &"dead".into())
    );
    assert!(found["evidence"].to_string().contains(&format!("process {dead}, which is dead")), "{found}");
    assert!(!found.to_string().contains("hidden"), "no secrets: {found}");
    assert!(stray(&env, innocent.pid()).is_none() && stray(&env, held.pid()).is_none());

    let text = env.call(["doctor", "--foreign"]).with_code(1).out();
    assert!(text.contains(&format!("penfold gc --foreign {}", left.pid())), "{text}");
    assert!(!left.has_ended(), "`doctor` ends nothing");
    assert!(env.call(["doctor", "--json"]).json()["foreign"].is_null());
}

/// spec: 5.11
#[test]
fn a_dead_owner_is_enough_and_members_of_sandboxes_are_no_strays() {
    if !crate::support::has_readable_ancestors() {
        return;
    }
    let env = TestEnv::new();
    let tmux = format!("/tmp/tmux-0/default,{},0", dead_owner(&env));
    let child = Running::start(env.command("setsid").args(["sleep", "3511"]).env("TMUX", &tmux));
    wait_until("it has a session", || stray(&env, child.pid()).is_some());
    Running::start(env.penfold(["run", "-d", "--", "sleep", "3512"]).env("TMUX", &tmux))
        .finish()
        .with_code(0);
    wait_until("it runs", || env.is_running("sleep 3512"));
    let member = &env.running("sleep 3512")[0];
    let found = strays(&env);
    assert!(
        !found
            .iter()
            .any(|stray| stray["pid"] == member.pid() || is_our_name(stray["name"].as_str().unwrap()))
    );
    env.call(["gc", "--foreign", &member.pid().to_string()]).with_code(2);
    assert!(!member.has_ended());
}

/// spec: 5.11
#[test]
fn only_what_is_named_is_ended() {
    let env = TestEnv::new();
    let (named, other) = (Stray::leave(&env, "3521", &[]), Stray::leave(&env, "3522", &[]));
    let number = named.pid().to_string();
    let dry = env.call(["gc", "--foreign", "-n", &number]).with_code(0);
    assert!(dry.out().contains("sleep 3521"), "{dry:?}");
    assert!(!named.has_ended());
    // Pid 1 is refused.
    env.call(["gc", "--foreign", &number, "1"]).with_code(2);
    assert!(named.has_ended() && !other.has_ended());
    // Already gone counts.
    env.call(["gc", "--foreign", &number]).with_code(0);
    for words in
        [&["gc", "--foreign"][..], &["gc", "--foreign", "0"], &["gc", "--foreign", "--kind", "name", "7"]]
    {
        assert_eq!(env.call(words).code(), Some(2), "{words:?}");
    }
    assert!(!other.has_ended());
}
