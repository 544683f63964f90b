//! An unsuitable `/proc`: of another pid namespace, or mounted with hidepid.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{PATIENCE, Process, Running, Sandbox, TestEnv, Who, has_program, is_root, wait_until};

/// Runs a program where `/proc` is that of the namespace above.
const FOREIGN: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];

fn foreign(env: &TestEnv, script: &str) -> Option<Running> {
    if !is_root() || !has_program(&[&FOREIGN[..], &["true"]].concat()) {
        return None;
    }
    let mut command = env.command(FOREIGN[0]);
    Some(Running::start(command.args(&FOREIGN[1..]).args(["sh", "-c", script])))
}

/// A tree whose leader goes when it is told.
fn tree(run: &str) -> String {
    format!(
        "mkfifo go; $PF {run} -- sh -c 'sleep 1061 & (setsid sleep 1062 &); \
         (trap \"\" TERM; sleep 1063) & echo up >> $UP; read x < go; exit 3'; echo ended $?; read x < go"
    )
}

fn strays(env: &TestEnv) -> Vec<Process> {
    ["sleep 1061", "sleep 1062", "sleep 1063"].iter().flat_map(|line| env.find(line)).collect()
}

/// spec: 3.1
#[test]
fn members_end_where_proc_is_that_of_another_pid_namespace() {
    for level in ["", "--contain subreaper"] {
        let env = TestEnv::new();
        let Some(running) = foreign(&env, &tree(level)) else { return };
        env.await_up(&["up"]);
        wait_until("the strays run", || strays(&env).len() == 3);
        let strays = strays(&env);
        std::fs::write(env.path("work/go"), "\n").unwrap();
        running.hear("ended 3\n", 1);
        assert!(strays.iter().all(Process::has_ended), "{level}");
        std::fs::write(env.path("work/go"), "\n").unwrap();
        running.finish().with_code(0);
        env.assert_nothing_left();
    }
}

/// spec: 3.1
#[test]
fn a_stop_ends_all_where_proc_is_that_of_another_pid_namespace() {
    let env = TestEnv::new();
    let script = "$PF --grace 200ms -- sh -c 'sleep 1061 & (setsid sleep 1062 &); \
        (trap \"\" TERM; sleep 1063) & echo up >> $UP; wait' & echo $! > pid; wait $!; echo ended $?";
    let Some(running) = foreign(&env, script) else { return };
    env.await_up(&["up"]);
    wait_until("the strays run", || strays(&env).len() == 3);
    let strays = strays(&env);
    let launcher = crate::support::children(crate::support::children(running.pid())[0]);
    Process::find(launcher[0]).unwrap().signal(Signal::TERM);
    running.hear("ended 143\n", 1);
    assert!(strays.iter().all(Process::has_ended));
    running.finish().with_code(0);
    env.assert_nothing_left();
}

/// spec: 3.1
#[test]
fn what_needs_proc_is_refused_before_anything_starts_where_it_is_another_namespace_s() {
    let env = TestEnv::new();
    let script = "for how in '--contain cgroup' '--contain pidns' -d; do $PF $how -- touch ran; echo $?; done; \
        $PENFOLD --root $ROOT reap --env UP=$UP; echo $?; $PENFOLD --root $ROOT doctor; exit 0";
    let Some(running) = foreign(&env, script) else { return };
    let finished = running.finish().with_code(0);
    let out = finished.out();
    let codes: Vec<&str> = out.lines().take(4).collect();
    assert_eq!(codes, ["125", "125", "125", "1"], "{out}{}", finished.err());
    assert_eq!(finished.err().matches("that of another pid namespace").count(), 4, "{}", finished.err());
    assert!(out.contains("that of another pid namespace"), "doctor: {out}");
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// An ordinary user where `/proc` hides the processes of others, and a program that becomes root there.
struct Hidden {
    env: TestEnv,
    mode: &'static str,
}

/// Every way in which `/proc` hides.
const MODES: [&str; 3] = ["1", "2", "ptraceable"];

impl Hidden {
    fn new(mode: &'static str) -> Option<Hidden> {
        // Before Linux 5.8 this mount would change that of the whole host, and it fails there.
        let mount =
            ["unshare", "--mount", "mount", "-t", "proc", "-o", "hidepid=ptraceable", "proc", "/proc"];
        let env = TestEnv::of(Who::Plain)?;
        if !has_program(&mount) || !has_program(&["setpriv", "--version"]) {
            return None;
        }
        let program = env.path("become-root");
        std::fs::copy("/usr/bin/setpriv", &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        Some(Hidden { env, mode })
    }

    /// `penfold` with these words there.
    fn penfold(&self, words: &[&str]) -> Command {
        let mut command = self.env.command("unshare");
        let script = format!(
            "mount -t proc -o hidepid={} proc /proc && exec setpriv --reuid {user} --regid {user} --clear-groups \"$@\"",
            self.mode,
            user = crate::support::USER
        );
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(crate::support::penfold());
        command.arg("--root").arg(self.env.root()).args(words);
        command.env("BECOME", self.env.path("become-root"));
        command
    }

    fn call(&self, words: &[&str]) -> crate::support::Finished {
        Running::start(&mut self.penfold(words)).finish()
    }

    /// The member that became root, once it has.
    fn root(&self) -> Process {
        let mut found = Vec::new();
        wait_until("the member became root", || {
            found = self.env.find("sleep 1071");
            found.len() == 1
        });
        found.remove(0)
    }

    fn detach(&self, words: &[&str]) -> Sandbox {
        let finished = self.call(&[&["run", "-d", "--contain", "subreaper"], words].concat()).with_code(0);
        Sandbox::printed(&self.env, &finished.out())
    }
}

const BECOME: &str =
    "$BECOME --reuid 0 --regid 0 --clear-groups sleep 1071 >/dev/null 2>&1 & echo up >> $UP;";

/// spec: 2.3
#[test]
fn member_that_became_root_is_no_lie_where_proc_hides_it() {
    for mode in MODES {
        let Some(hidden) = Hidden::new(mode) else { return };
        let script = format!("{BECOME} read x < go; exit 3");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            hidden.env.path("work/go"),
            rustix::fs::FileType::Fifo,
            0o644.into(),
            0,
        )
        .unwrap();
        let words = ["run", "--contain", "subreaper", "--patience", PATIENCE, "--", "sh", "-c", &script];
        let running = Running::start(&mut hidden.penfold(&words));
        let member = hidden.root();
        std::fs::write(hidden.env.path("work/go"), "\n").unwrap();
        let finished = running.finish().with_code(120);
        assert!(finished.err().contains("hidepid"), "{mode}: {}", finished.err());
        assert!(!member.has_ended());
        member.signal(Signal::KILL);
        hidden.env.assert_nothing_left();
    }
}

/// spec: 2.3
#[test]
fn kill_tells_of_a_member_that_became_root_where_proc_hides_it() {
    for mode in MODES {
        let Some(hidden) = Hidden::new(mode) else { return };
        let sandbox = hidden.detach(&["sh", "-c", &format!("{BECOME} wait")]);
        let member = hidden.root();
        let finished = hidden.call(&["kill", "--patience", PATIENCE, &sandbox.id]).with_code(5);
        assert!(finished.err().contains("hidepid"), "{mode}: {}", finished.err());
        assert!(!member.has_ended());
        member.signal(Signal::KILL);
        sandbox.await_end();
        hidden.call(&["rm", &sandbox.id]).with_code(0);
        hidden.env.assert_nothing_left();
    }
}

/// spec: 2.3
#[test]
fn orphan_is_put_away_where_proc_hides_the_processes_of_others() {
    for (mode, verb) in [("1", "kill"), ("2", "gc"), ("ptraceable", "kill")] {
        let Some(hidden) = Hidden::new(mode) else { return };
        let sandbox = hidden.detach(&["sh", "-c", "setsid sleep 1072 & exec sleep 1073"]);
        let members = || -> Vec<Process> {
            ["sleep 1072", "sleep 1073"].iter().flat_map(|line| hidden.env.find(line)).collect()
        };
        wait_until("the tree stands", || members().len() == 2);
        let members = members();
        sandbox.kill_supervisors();
        assert!(members.iter().all(|member| !member.has_ended()));
        let words = if verb == "gc" { vec!["gc", "-f"] } else { vec!["kill", &sandbox.id] };
        hidden.call(&words).with_code(0);
        assert!(members.iter().all(Process::has_ended), "{mode}");
        hidden.call(&["rm", &sandbox.id]).with_code(0);
        hidden.env.assert_nothing_left();
    }
}

/// spec: 2.3
#[test]
fn orphan_with_a_member_that_became_root_is_told_within_the_patience_where_proc_hides_it() {
    for mode in MODES {
        let Some(hidden) = Hidden::new(mode) else { return };
        let sandbox = hidden.detach(&["sh", "-c", &format!("{BECOME} wait")]);
        let member = hidden.root();
        sandbox.kill_supervisors();
        let finished = hidden.call(&["kill", "--patience", PATIENCE, &sandbox.id]).with_code(5);
        assert!(finished.err().contains("hidepid"), "{mode}: {}", finished.err());
        assert!(!member.has_ended());
        member.signal(Signal::KILL);
        member.await_end();
        hidden.call(&["rm", "-f", &sandbox.id]).with_code(0);
        hidden.env.assert_nothing_left();
    }
}
