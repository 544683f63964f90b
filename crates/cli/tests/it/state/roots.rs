//! State roots without `--root`: services and login sessions of a user agree, other roots are named, root lists all users.

use std::process::Command;

use serde_json::Value;

use crate::support::jail::jailed;
use crate::support::{Finished, Running, TestEnv, USER, has_program, is_root, penfold};

/// Another ordinary user.
const OTHER: u32 = 65533;

/// A host of its own below `/run` and `/tmp`, which begin empty, for as long as this value lives. In a network namespace of
/// its own, no sockets of other tests have the same paths.
struct Host {
    env: TestEnv,
    first: Running,
}

impl Host {
    fn new() -> Option<Host> {
        let user = USER.to_string();
        let reaches =
            ["setpriv", "--reuid", &user, "--clear-groups", "test", "-x", penfold().to_str().unwrap()];
        if !is_root() || !has_program(&["unshare", "--mount", "--net", "true"]) || !has_program(&reaches) {
            return None;
        }
        let env = TestEnv::new();
        let script = "mount -t tmpfs -o mode=755 none /run && mount -t tmpfs -o mode=1777 none /tmp &&
            echo up && exec sleep 3601";
        let mut command = env.command("unshare");
        command.args(["--mount", "--net", "--propagation", "private", "sh", "-c", script]).current_dir("/");
        let first = Running::start(&mut command);
        first.hear("up\n", 1);
        Some(Host { env, first })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.env.command("nsenter");
        command.arg(format!("--target={}", self.first.pid())).args(["--mount", "--net", "--", program]);
        command.env("TMPDIR", "/tmp").current_dir("/");
        command
    }

    /// Runs a script as root.
    #[track_caller]
    fn script(&self, script: &str) {
        Running::start(self.command("sh").args(["-ec", script])).finish().with_code(0);
    }

    /// Makes the runtime directory of a user, as logind does.
    #[track_caller]
    fn log_in(&self, user: u32) {
        self.script(&format!(
            "mkdir -p /run/user && mkdir -m 700 /run/user/{user} && chown {user} /run/user/{user}"
        ));
    }

    /// Runs `penfold` with these words as this user, without a runtime directory in the environment.
    #[track_caller]
    fn call(&self, user: u32, words: &[&str]) -> Finished {
        self.call_with(user, None, words)
    }

    #[track_caller]
    fn call_with(&self, user: u32, runtime: Option<&str>, words: &[&str]) -> Finished {
        let mut command = self.command("setpriv");
        let number = user.to_string();
        command.args(["--reuid", &number, "--regid", &number, "--clear-groups"]).arg(penfold()).args(words);
        if let Some(runtime) = runtime {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        Running::start(&mut command).finish()
    }

    /// Starts a detached sandbox of a user; gives its id.
    #[track_caller]
    fn detach(&self, user: u32, name: &str) -> String {
        let started = self.call(user, &["run", "-d", "--name", name, "--", "sleep", "3602"]).with_code(0);
        started.out().trim().to_owned()
    }

    /// The state root with the record of a sandbox.
    #[track_caller]
    fn assert_record(&self, root: &str, id: &str) {
        self.script(&format!("test -d {root}/sandboxes/{id}"));
    }
}

/// spec: 5.14
#[test]
fn service_and_login_session_of_a_user_have_the_same_root() {
    jailed(|| {
        let Some(host) = Host::new() else { return };
        host.log_in(USER);
        let (runtime, root) = (format!("/run/user/{USER}"), format!("/run/user/{USER}/penfold"));
        let id = host.detach(USER, "web");
        host.assert_record(&root, &id);
        host.script(&format!("! test -e /tmp/penfold-{USER}"));
        let listed = host.call_with(USER, Some(&runtime), &["ps", "--format", "{{.Name}}"]).with_code(0);
        assert_eq!((listed.out().as_str(), listed.err().as_str()), ("web\n", ""));
        host.call_with(USER, Some(&runtime), &["stop", "-t", "0", "web"]).with_code(0);
        let status = host.call(USER, &["inspect", "--format", "{{.State}}", "web"]).with_code(0).out();
        assert_eq!(status, "killed\n");
    });
}

/// spec: 5.14
#[test]
fn runtime_directory_that_others_may_write_to_or_own_is_not_used() {
    jailed(|| {
        let Some(host) = Host::new() else { return };
        host.log_in(USER);
        for harm in [
            format!("chmod 770 /run/user/{USER}"),
            format!("chmod 700 /run/user/{USER}; chown {OTHER} /run/user/{USER}"),
            format!("mv /run/user/{USER} /run/own; chown {USER} /run/own; ln -s /run/own /run/user/{USER}"),
        ] {
            host.script(&harm);
            let id = host.detach(USER, "web");
            host.assert_record(&format!("/tmp/penfold-{USER}"), &id);
            host.script(&format!("! test -e /run/user/{USER}/penfold"));
            host.call(USER, &["rm", "-f", "web"]).with_code(0);
        }
    });
}

/// spec: 5.14
#[test]
fn sandboxes_below_another_root_of_the_user_are_named_and_left_alone() {
    jailed(|| {
        let Some(host) = Host::new() else { return };
        let root = format!("/tmp/penfold-{USER}");
        let id = host.detach(USER, "early");
        host.assert_record(&root, &id);
        host.log_in(USER);
        let listed = host.call(USER, &["ps"]).with_code(0);
        assert!(!listed.out().contains(&id), "{}", listed.out());
        let said = listed.err();
        assert!(
            said.lines().count() == 1 && said.starts_with("penfold: 1 sandbox lives below another"),
            "{said}"
        );
        assert!(said.contains(&format!("`penfold --root {root} ps`")), "{said}");
        assert_eq!(host.call(USER, &["-q", "ps"]).with_code(0).err(), "");
        let found = host.call(USER, &["doctor", "--json"]).json();
        let other = |found: &Value| {
            found["abilities"].as_array().unwrap().iter().find(|one| one["name"] == "other-root").cloned()
        };
        let told = other(&found).unwrap_or_else(|| panic!("{found}"));
        assert_eq!(
            (&told["state"], &told["mend"]),
            (&"ok".into(), &format!("penfold --root {root} ps").into())
        );
        assert!(host.call(USER, &["doctor"]).out().contains(&format!("penfold --root {root} ps")));

        for words in [&["stop", "early"][..], &["kill", &id], &["gc", "-f", "--older-than", "0", &id]] {
            host.call(USER, words).with_code(3);
        }
        host.call(USER, &["kill", "-f", "--all"]).with_code(0);
        host.call(USER, &["gc", "-f", "--older-than", "0"]).with_code(0);
        let listed = host.call(USER, &["--root", &root, "ps", "--format", "{{.ID}} {{.State}}"]).with_code(0);
        assert_eq!((listed.out(), listed.err()), (format!("{id} running\n"), String::new()));
        host.call(USER, &["--root", &root, "kill", "early"]).with_code(0);
        assert_eq!(host.call(USER, &["ps"]).with_code(0).err(), "");
        assert_eq!(other(&host.call(USER, &["doctor", "--json"]).json()), None);
    });
}

/// spec: 5.15
#[test]
fn root_lists_the_sandboxes_of_all_users() {
    jailed(|| {
        let Some(host) = Host::new() else { return };
        let early = host.detach(USER, "early");
        host.log_in(USER);
        host.log_in(OTHER);
        let ids = [host.detach(0, "system"), host.detach(OTHER, "other"), host.detach(USER, "late"), early];
        let homes = [
            (0, "/run/penfold".to_owned()),
            (OTHER, format!("/run/user/{OTHER}/penfold")),
            (USER, format!("/run/user/{USER}/penfold")),
            (USER, format!("/tmp/penfold-{USER}")),
        ];
        // A directory of another user than its name says, and links.
        host.script(&format!(
        "cp -r /tmp/penfold-{USER} /tmp/penfold-65532; chown -R {USER} /tmp/penfold-65532
         mkdir -m 700 /run/user/65531; ln -s /run/penfold /run/user/65531/penfold; chown -h 65531 /run/user/65531 /run/user/65531/penfold
         ln -s /tmp/penfold-{USER} /tmp/penfold-65530; chown -h 65530 /tmp/penfold-65530"
    ));
        let listed = host.call(0, &["ps", "--all-users", "--json"]).with_code(0);
        assert_eq!(listed.err(), "");
        let listed = listed.json();
        let listed = listed.as_array().unwrap();
        assert_eq!(listed.len(), 4, "{listed:?}");
        for (id, (user, root)) in ids.iter().zip(&homes) {
            let one = listed.iter().find(|one| one["id"] == id.as_str()).unwrap();
            assert_eq!((&one["uid"], &one["root"]), (&(*user).into(), &root.as_str().into()), "{one}");
            assert_eq!((&one["schema"], &one["status"]), (&1.into(), &"running".into()), "{one}");
        }
        let table = host.call(0, &["ps", "--all-users"]).with_code(0).out();
        assert!(table.starts_with("USER "), "{table}");
        let line = table.lines().find(|line| line.contains(&ids[0])).unwrap();
        assert!(line.starts_with("root "), "{table}");

        host.call(USER, &["kill", "late"]).with_code(0);
        let quiet = |words: &[&str]| host.call(0, words).with_code(0).out().lines().count();
        assert_eq!(quiet(&["ps", "--all-users", "-q"]), 3);
        assert_eq!(quiet(&["ps", "--all-users", "-aq"]), 4);
        let alone = host.call(0, &["ps", "--format", "{{.ID}}"]).with_code(0).out();
        assert!(alone.contains(&ids[0]) && !alone.contains(&ids[1]), "{alone}");
        host.call(USER, &["ps", "--all-users"]).refused(7, "only root");
        host.call(0, &["--root", "/run/penfold", "ps", "--all-users"]).refused(2, "--all-users");
        for (user, name) in [(0, "system"), (OTHER, "other")] {
            host.call(user, &["kill", name]).with_code(0);
        }
    });
}
