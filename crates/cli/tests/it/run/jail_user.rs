//! `penfold run --jail-user`: a user and a home of the jail's own.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;

use super::jail::environments;
use crate::support::{Running, TestEnv, Who, entries, has_program, is_root, penfold, skip, wait_until};

/// Says what a process of the user `ann` has, and fails where it has more or less.
pub const OF_ANN: &str = r#"
    whoami; id -u; id -g; id -un; id -gn; pwd; cd ~; pwd; echo "$HOME $USER $LOGNAME $SHELL $TMPDIR"
    touch mine /tmp/mine /var/tmp/mine && stat -c '%U %G %u %g' mine . /tmp/mine; rm mine /tmp/mine /var/tmp/mine
    stat -c %a /tmp /var/tmp; ls -A /home /root; for place in /home /root /etc / /home/ann/..; do
        (: > $place/pf-test) 2>/dev/null && echo "wrote $place"
    done
    (echo > /etc/passwd) 2>/dev/null && echo 'wrote accounts'; stat -c %a /etc/passwd /etc/group
    grep -E '^(Uid|Cap(Eff|Prm|Bnd)|NoNewPrivs|Seccomp:)' /proc/self/status"#;

/// What [`OF_ANN`] says, with this shell.
pub fn said_by_ann(shell: &str) -> String {
    let none = "0000000000000000";
    format!(
        "ann\n1000\n1000\nann\nann\n/home/ann\n/home/ann\n/home/ann ann ann {shell} /tmp\n\
         ann ann 1000 1000\nann ann 1000 1000\nann ann 1000 1000\n1777\n1777\n/home:\nann\n\n/root:\n644\n644\n\
         Uid:\t1000\t1000\t1000\t1000\nCapPrm:\t{none}\nCapEff:\t{none}\nCapBnd:\t{none}\nNoNewPrivs:\t1\nSeccomp:\t2\n"
    )
}

const ANN: [&str; 4] = ["--profile", "jail", "--jail-user", "ann"];

/// The words of a run with a user of its own.
pub fn of_ann<'a>(flags: &[&'a str], words: &[&'a str]) -> Vec<&'a str> {
    [&ANN, flags, &["--"], words].concat()
}

/// The shell of users where the root directory is that of the host.
pub fn shell() -> &'static str {
    if Path::new("/bin/bash").try_exists().unwrap() { "/bin/bash" } else { "/bin/sh" }
}

/// Environments of root, and of ordinary users with and without a cgroup.
pub fn everyone() -> Vec<TestEnv> {
    let all = environments();
    let delegated = if all.is_empty() { None } else { TestEnv::of(Who::Delegated) };
    all.into_iter().chain(delegated).collect()
}

/// spec: 19.10
#[test]
fn the_command_has_a_user_and_a_home_of_its_own() {
    for env in everyone() {
        let done = env.run(of_ann(&[], &["sh", "-c", OF_ANN])).with_code(0);
        assert_eq!(done.out(), said_by_ann(shell()), "{:?}: {}", env.who, done.err());
        // The accounts of the host are there, but for those of the name and the number.
        let script = "grep -c '^root:' /etc/passwd; grep -c ':x:1000:' /etc/passwd /etc/group; ls -A; stat -c %d . /tmp";
        let done = env.run(of_ann(&[], &["sh", "-c", script])).with_code(0);
        let said = done.out();
        let disk = fs::metadata(env.path("tmp")).unwrap().dev();
        let told = said.strip_prefix("1\n/etc/passwd:1\n/etc/group:1\n");
        let (home, temporary) = told.and_then(|told| told.split_once('\n')).expect("two devices");
        let [home, temporary] = [home, temporary.trim()].map(|number| number.parse::<u64>().unwrap());
        assert!(home == disk && temporary != disk, "not on disk: {said}{}", done.err());
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn the_home_is_gone_with_the_sandbox() {
    for env in environments() {
        for ending in [&["true"][..], &["false"], &["sh", "-c", "kill -9 $$"]] {
            let script = "mkdir -p deep/er; echo > deep/er/file; chmod 0 deep; exec \"$@\"";
            env.run(of_ann(&[], &[&["sh", "-c", script, "sh"], ending].concat()));
            env.assert_nothing_left();
        }
        let sandbox = env.detach(of_ann(&[], &["sh", "-c", "touch there; exec sleep 1000"]));
        let seen = || entries(&env.path("tmp"));
        let home = || seen().first().is_some_and(|home| home.join("there").try_exists().unwrap());
        wait_until("the home is a directory of the host", home);
        sandbox.call(&env, &["kill", "ID"]).with_code(0);
        assert_eq!(seen().len(), 0);
        env.call(["rm", &sandbox.id]).with_code(0);
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn other_sandboxes_are_hidden_wherever_their_files_are() {
    let Some(env) = environments().into_iter().next() else { return };
    // The usual places are empty in any jail with a user.
    let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [state, temporary] = ["state", "tmp"].map(|name| elsewhere.path().join(name));
    for dir in [&state, &temporary] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("secret"), "x").unwrap();
    }
    let script = "ls -A $0 $1; pwd; touch mine; touch $0/own $1/own 2>/dev/null || echo refused";
    let [state, temporary] = [&state, &temporary].map(|dir| dir.to_str().unwrap());
    let mut command = env.command(penfold());
    command.args(["--root", state, "run"]).args(of_ann(&[], &["sh", "-c", script, state, temporary]));
    let done = Running::start(command.env("TMPDIR", temporary)).finish().with_code(0);
    let expected = format!("{state}:\n\n{temporary}:\n/home/ann\nrefused\n");
    // A home of root hides the directories themselves.
    assert!(done.out() == expected || done.out() == "/home/ann\nrefused\n", "{}", done.out());
    env.assert_nothing_left();
}

/// spec: 19.10
#[test]
fn variables_of_the_request_go_before_those_of_the_user() {
    for env in environments() {
        let script = "echo $HOME $USER $LOGNAME $SHELL $TMPDIR";
        let flags = ["-e", "HOME=/tmp", "-e", "USER=bob", "-e", "TMPDIR=/var/tmp"];
        let done = env.run(of_ann(&flags, &["sh", "-c", script])).with_code(0);
        assert_eq!(done.out(), format!("/tmp bob ann {} /tmp\n", shell()), "{}", done.err());
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn a_user_is_refused_where_it_contradicts_something() {
    for env in environments() {
        let work = env.path("work").display().to_string();
        for (flags, part) in [
            (&["--profile", "jail", "--jail-user", "root"][..], "not `root`"),
            (&["--profile", "jail", "--jail-user", "Ann"], "is no name for the user of a jail"),
            (&["--profile", "jail", "--jail-user", "a/b"], "is no name for the user of a jail"),
            (&["--profile", "vmm", "--jail-user", "ann"], "`--jail-user` is a flag of the profile `jail`"),
            (&["--jail-user", "ann"], "--profile"),
            (&["--profile", "jail", "--jail-user", "ann", "-w", "/tmp"], "together with `--workdir`"),
            (
                &["--profile", "jail", "--jail-user", "ann", "--workspace", &work, "--keep"],
                "together with `--workspace`",
            ),
        ] {
            env.run([flags, &["touch", "ran"]].concat()).refused(125, part);
        }
        let file = "command = ['true']\nprofile = 'jail'\n[jail]\nuser = '-'\n";
        fs::write(env.path("work/box.toml"), file).unwrap();
        env.run(["--spec", "box.toml"]).refused(125, "--jail-user");
        fs::write(env.path("work/box.toml"), file.replace("'-'", "'ann'").replace("'true'", "'whoami'"))
            .unwrap();
        assert_eq!(env.run(["--spec", "box.toml"]).with_code(0).out(), "ann\n");
        assert!(!env.path("work/ran").try_exists().unwrap());
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn a_root_directory_has_the_user_as_well() {
    if !fs::symlink_metadata("/bin").unwrap().is_symlink() {
        return skip("`/usr` is no root directory here");
    }
    for env in environments() {
        // `/usr` has neither `/etc` nor `/home`; with the loader of the host its programs run.
        let script = "whoami; pwd; touch mine && stat -c %U mine; ls -A /home; cat /etc/passwd /etc/group; \
            for place in /etc / /home; do (: > $place/x) 2>/dev/null && echo \"wrote $place\"; done; :";
        let done = env.run(of_ann(&["--rootfs", "/usr"], &["/bin/sh", "-c", script])).with_code(0);
        let few = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
        let groups = "root:x:0:\nnogroup:x:65534:\nann:x:1000:\n";
        let shell = shell();
        let accounts = format!("{few}ann:x:1000:1000::/home/ann:{shell}\n{groups}");
        assert_eq!(done.out(), format!("ann\n/home/ann\nann\nann\n{accounts}"), "{}", done.err());
        env.assert_nothing_left();
    }
}

/// Makes a root directory with few programs of this host; none where that cannot be.
fn make_rootfs(root: &Path) -> Option<()> {
    for name in ["cat", "id", "ls", "sh", "whoami"] {
        let program = Path::new("/bin").join(name);
        if !program.try_exists().unwrap() || !has_program(&["ldd", "--version"]) {
            return None;
        }
        copy(&program, &root.join("bin").join(name));
        let listed = Running::start(Command::new("ldd").arg(&program)).finish();
        for line in listed.out().lines() {
            let path = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(path) = path {
                copy(Path::new(path), &root.join(path.trim_start_matches('/')));
            }
        }
    }
    Some(())
}

fn copy(source: &Path, target: &Path) {
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    fs::copy(source, target).unwrap();
}

/// spec: 19.10
#[test]
fn the_files_of_a_root_directory_stay_but_for_homes() {
    for env in environments() {
        let root = env.path("rootfs");
        if make_rootfs(&root).is_none() {
            return skip("no programs for a root directory");
        }
        for (path, text) in [
            ("home/bob/secret", ""),
            ("root/secret", ""),
            ("etc/other", "other\n"),
            ("etc/passwd", "bob:x:1000:7::/home/bob:/bin/sh\ncat:x:8:8::/:/bin/sh\n"),
            ("etc/group", "users:x:100:ann,cat\n"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        symlink("other", root.join("etc/link")).unwrap();
        let script = "whoami; id; cat /etc/passwd /etc/group /etc/link; ls /etc /home /root; echo $SHELL; ls -d /tmp /home/bob";
        let flags = ["--rootfs", root.to_str().unwrap()];
        let user = "ann\nuid=1000(ann) gid=1000(ann) groups=1000(ann)\ncat:x:8:8::/:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        let rest = "other\n/etc:\ngroup\nlink\nother\npasswd\n\n/home:\nann\n\n/root:\n/bin/sh\n/tmp\n";
        for groups in ["users:x:100:cat\n", "root:x:0:\nnogroup:x:65534:\n"] {
            let done = env.run(of_ann(&flags, &["/bin/sh", "-c", script]));
            let expected = format!("{user}{groups}ann:x:1000:\n{rest}");
            assert_eq!(done.out(), expected, "{:?}: {}", env.who, done.err());
            // The second time there is no such file.
            let _ = fs::remove_file(root.join("etc/group"));
        }
        // A link would lead to the host.
        fs::rename(root.join("etc"), root.join("other")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        env.run(of_ann(&flags, &["/bin/sh", "-c", script])).refused(125, "is no directory");
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn the_home_may_have_any_network() {
    for env in environments() {
        if env.is_ordinary() || !crate::resources::can_make() {
            continue;
        }
        let script = "whoami; pwd; grep -c : /proc/net/dev";
        let done = env.run(of_ann(&["--network", "new", "--tap"], &["sh", "-c", script])).with_code(0);
        assert_eq!(done.out(), "ann\n/home/ann\n2\n", "{}", done.err());
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn a_host_may_have_no_homes_or_a_link_to_them() {
    for env in environments().into_iter().filter(|env| is_root() && !env.is_ordinary()) {
        for link in [None, Some("/var")] {
            let mut command = env.command("bwrap");
            command.args(["--cap-add", "ALL"]);
            for entry in entries(Path::new("/")).iter().filter(|entry| !entry.ends_with("home")) {
                match fs::read_link(entry) {
                    Ok(link) => command.arg("--symlink").arg(link).arg(entry),
                    Err(_) => command.arg("--dev-bind").arg(entry).arg(entry),
                };
            }
            if let Some(link) = link {
                command.args(["--symlink", link, "/home"]);
            }
            let script = "whoami; pwd; ls /home; touch mine && stat -c %U mine; touch /pf-test 2>/dev/null || echo read-only";
            command.arg(penfold()).arg("--root").arg(env.root()).arg("run");
            let done = Running::start(command.args(of_ann(&[], &["sh", "-c", script]))).finish();
            assert_eq!(done.out(), "ann\n/home/ann\nann\nann\nread-only\n", "{link:?}: {}", done.err());
        }
        env.assert_nothing_left();
    }
}
