//! Hosts without some features: `run` works and names the missing feature if the guarantee holds, else it does not start.

use std::ffi::OsStr;
use std::path::Path;

use crate::support::{Finished, Running, TestEnv, USER, has_program, is_root, penfold, skip};

/// A command that leaves two processes behind and exits with 3.
const LEAVE: [&str; 3] = ["bash", "-c", "setsid -f sleep 600; (sleep 600 &); exit 3"];

/// `penfold --root ROOT run` with these words after a wrapper.
fn wrapped<S: AsRef<OsStr>>(env: &TestEnv, wrapper: &[S], state: &Path, words: &[&str]) -> Finished {
    let (program, rest) = wrapper.split_first().unwrap();
    let mut command = env.command(program);
    Running::start(command.args(rest).arg(penfold()).arg("--root").arg(state).arg("run").args(words)).finish()
}

#[track_caller]
fn both_end(env: &TestEnv, finished: Finished) -> String {
    let finished = finished.with_code(3);
    let said = finished.err();
    assert!(said.contains("ended 2 processes") && said.contains("verified gone"), "{said}");
    assert!(!said.contains("internal error") && !said.contains("panicked"), "{said}");
    env.assert_nothing_left();
    said
}

/// A wrapper that does something in a mount namespace of its own first.
fn mounting(script: &str) -> Vec<String> {
    let script = format!("set -e; {script}; exec \"$@\"");
    ["unshare", "--mount", "--propagation", "private", "bash", "-c", &script, "wrapper"]
        .map(str::to_owned)
        .into()
}

fn mounts() -> bool {
    is_root() && has_program(&["unshare", "--mount", "true"])
}

/// spec: 5.1
#[test]
fn state_directory_that_cannot_be_used() {
    let env = TestEnv::new();
    std::fs::write(env.path("file"), "").unwrap();
    std::os::unix::fs::symlink(env.path("root"), env.path("link")).unwrap();
    for place in ["file", "file/below", "link"] {
        let said = both_end(&env, wrapped(&env, &["env"], &env.path(place), &LEAVE));
        assert!(said.contains("no record"), "{place}: {said}");
    }
    let said = both_end(&env, wrapped(&env, &["env"], Path::new("/proc/nowhere"), &LEAVE));
    assert!(said.contains("no record"), "{said}");
}

/// spec: 5.1
#[test]
fn full_or_read_only_state_directory() {
    if !mounts() {
        return;
    }
    let env = TestEnv::new();
    let state = env.path("root");
    for script in [
        "mount -t tmpfs -o size=4k,nr_inodes=3 none $R",
        "mount -t tmpfs -o size=4k none $R; dd if=/dev/zero of=$R/full bs=4k count=1 2>/dev/null",
        "mount -t tmpfs -o ro none $R",
        "mount -t tmpfs -o size=4k,nr_inodes=1 none $R",
    ] {
        let wrapper = mounting(&script.replace("$R", state.to_str().unwrap()));
        let said = both_end(&env, wrapped(&env, &wrapper, &state, &LEAVE));
        assert!(said.contains("no record"), "{script}: {said}");
    }
}

/// spec: 5.14
#[test]
fn below_an_image_without_run_the_next_directory_has_the_state_root() {
    if !mounts() {
        return;
    }
    let env = TestEnv::new();
    let image = env.path("work/image");
    for dir in ["usr", "bin", "lib", "lib64", "dev", "proc", "tmp", "penfold"] {
        std::fs::create_dir_all(image.join(dir)).unwrap();
    }
    let script = r#"cd "$1"; mount --bind . .; cd "$1"
        for dir in usr bin lib lib64 dev proc; do [ ! -d /$dir ] || mount --rbind /$dir $dir; done
        mount --bind "${2%/*}" penfold; mount -t tmpfs none tmp; mount -t tmpfs -o "$3" none dev/shm
        mount -o remount,bind,ro .; unset PENFOLD_ROOT
        chroot . sh -ec 'p=/penfold/penfold; id=$($p run -d --name web -- sleep 3001); [ "$($p ps -q)" = $id ]; $p kill web
            $p rm web; $p run -- true; echo /tmp/penfold-* /dev/shm/penfold-*'"#;
    for (options, root) in
        [("rw", "/tmp/penfold-* /dev/shm/penfold-0\n"), ("ro", "/tmp/penfold-0 /dev/shm/penfold-*\n")]
    {
        let mut command = env.command("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-ec", script, "sh"]);
        let done = Running::start(command.arg(&image).arg(penfold()).arg(options)).finish().with_code(0);
        assert!(done.out().ends_with(root) && done.err().is_empty(), "{} {}", done.out(), done.err());
        env.assert_nothing_left();
    }
}

/// spec: 2.4
#[test]
fn report_on_a_full_disk_is_said_to_be_missing() {
    if !mounts() {
        return;
    }
    let env = TestEnv::new();
    let work = env.path("work");
    let script = format!(
        "mount -t tmpfs -o size=4k none {0}; cd {0}; head -c 4096 /dev/zero > full; : > r",
        work.display()
    );
    let finished =
        wrapped(&env, &mounting(&script), &env.path("root"), &["--report", "r", "sh", "-c", "exit 3"])
            .with_code(3);
    assert!(finished.err().contains("cannot write the report"), "{}", finished.err());
    env.assert_nothing_left();
}

#[test]
fn cgroups_absent_or_read_only() {
    if !mounts() {
        return;
    }
    let env = TestEnv::new();
    for script in [
        "mount -t tmpfs none /sys",
        "umount -R /sys/fs/cgroup",
        "mount --rbind /sys/fs/cgroup /sys/fs/cgroup; \
            for m in $(awk '$5 ~ \"^/sys/fs/cgroup\" { print $5 }' /proc/self/mountinfo | sort -u); do mount -o remount,bind,ro $m; done",
    ] {
        both_end(&env, wrapped(&env, &mounting(script), &env.path("root"), &LEAVE));
        let refused = wrapped(&env, &mounting(script), &env.path("root"), &["--contain", "cgroup", "true"]);
        refused.refused(125, "no cgroup can be made here");
    }
}

#[test]
fn proc_hidden_is_refused_with_the_reason() {
    if !mounts() {
        return;
    }
    let env = TestEnv::new();
    // Without /proc penfold cannot see whether something is left.
    let finished =
        wrapped(&env, &mounting("mount -t tmpfs none /proc"), &env.path("root"), &["sh", "-c", "echo ran"]);
    finished.refused(125, "/proc");
    env.assert_nothing_left();
}

#[test]
fn proc_read_only_and_devices_absent() {
    if !mounts() {
        return;
    }
    let env = TestEnv::new();
    both_end(&env, wrapped(&env, &mounting("mount -o remount,bind,ro /proc"), &env.path("root"), &LEAVE));
    both_end(&env, wrapped(&env, &mounting("mount -t tmpfs none /dev"), &env.path("root"), &LEAVE));
    both_end(&env, wrapped(&env, &mounting("mount -t tmpfs -o ro none /run"), &env.path("root"), &LEAVE));
}

#[test]
fn inside_of_bwrap() {
    let wrapper = [
        "bwrap",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--unshare-pid",
        "--die-with-parent",
    ];
    if !has_program(&wrapper.iter().chain(&["true"]).copied().collect::<Vec<_>>()) {
        return;
    }
    let env = TestEnv::new();
    for level in ["auto", "subreaper", "pidns"] {
        let words: Vec<&str> = ["--contain", level].into_iter().chain(LEAVE).collect();
        let finished = wrapped(&env, &wrapper, Path::new("/run/penfold-test"), &words);
        if level == "pidns" && finished.code() == Some(125) {
            assert!(finished.err().contains("pid namespace"), "{}", finished.err());
            continue;
        }
        both_end(&env, finished);
    }
}

#[test]
fn seccomp_without_clone3_as_in_older_containers() {
    if !cfg!(target_arch = "x86_64") {
        return skip("the filter is for x86-64");
    }
    let wrapper = ["bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev"];
    if !has_program(&wrapper.iter().chain(&["true"]).copied().collect::<Vec<_>>()) {
        return;
    }
    let env = TestEnv::new();
    // seccomp(2): load the number of the call; clone3 (435) fails with ENOSYS (0x26), all else is allowed.
    let program: [(u16, u8, u8, u32); 4] =
        [(0x20, 0, 0, 0), (0x15, 0, 1, 435), (0x06, 0, 0, 0x0005_0026), (0x06, 0, 0, 0x7fff_0000)];
    let filter: Vec<u8> = program
        .iter()
        .flat_map(|&(code, yes, no, k)| [&code.to_ne_bytes()[..], &[yes, no], &k.to_ne_bytes()].concat())
        .collect();
    std::fs::write(env.path("filter"), filter).unwrap();
    let script =
        format!("exec {} --seccomp 10 \"$@\" 10<{}", wrapper.join(" "), env.path("filter").display());
    for level in ["auto", "cgroup", "subreaper"] {
        let words: Vec<&str> = ["--contain", level].into_iter().chain(LEAVE).collect();
        let finished = wrapped(&env, &["bash", "-c", &script, "wrapper"], &env.path("root"), &words);
        if level == "cgroup" && finished.code() == Some(125) {
            assert!(finished.err().contains("cgroup"), "{}", finished.err());
            continue;
        }
        both_end(&env, finished);
    }
}

#[test]
fn few_descriptors_either_suffice_or_are_refused() {
    let env = TestEnv::new();
    for most in 3..40 {
        let script = format!("ulimit -n {most}; exec \"$@\"");
        let finished =
            wrapped(&env, &["bash", "-c", &script, "wrapper"], &env.path("root"), &["sh", "-c", "exit 3"]);
        match finished.code() {
            Some(3) => {}
            Some(125) => assert!(finished.err().contains("os error 24"), "{most}: {}", finished.err()),
            _ => panic!("{most}: {finished:?}"),
        }
    }
    env.assert_nothing_left();
}

#[test]
fn few_processes_either_suffice_or_are_refused() {
    if !is_root() || !user_can_run("61184") {
        return;
    }
    let env = TestEnv::new();
    let state = env.path("user");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(61184), Some(61184)).unwrap();
    for most in 1..8 {
        // A user that runs nothing else: the limit counts over the whole host.
        let script = format!("ulimit -u {most}; exec \"$@\"");
        let user = [
            "setpriv",
            "--reuid",
            "61184",
            "--regid",
            "61184",
            "--clear-groups",
            "bash",
            "-c",
            &script,
            "wrapper",
        ];
        let finished = wrapped(&env, &user, &state, &["sh", "-c", "exit 3"]);
        match finished.code() {
            Some(3) => {}
            Some(125) => assert!(finished.err().contains("os error 11"), "{most}: {}", finished.err()),
            _ => panic!("{most}: {finished:?}"),
        }
    }
    env.assert_nothing_left();
}

/// spec: 5.1
#[test]
fn ordinary_user_without_anything() {
    if !is_root() || !user_can_run("61185") {
        return;
    }
    let env = TestEnv::new();
    let user = ["setpriv", "--reuid", "61185", "--regid", "61185", "--clear-groups"];
    let said = both_end(&env, wrapped(&env, &user, &env.path("root"), &LEAVE));
    assert!(said.contains("no record"), "{said}");
}

/// Whether this user reaches the binary, wherever it was built.
fn user_can_run(user: &str) -> bool {
    has_program(&["setpriv", "--reuid", user, "--clear-groups", "test", "-x", penfold().to_str().unwrap()])
}

/// spec: 5.1
#[test]
fn makeshift_state_directory_that_others_may_write_to_is_closed() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    let script = format!(
        "mount -t tmpfs none /tmp && mkdir -m 0777 /tmp/penfold-{USER} && chown {USER} /tmp/penfold-{USER} &&
        setpriv --reuid {USER} --regid {USER} --clear-groups $PENFOLD run sh -c 'echo said' &&
        stat -c %a /tmp/penfold-{USER} && ls /tmp/penfold-{USER}"
    );
    let mut command = env.command("unshare");
    let done =
        Running::start(command.args(["--mount", "sh", "-c", &script]).current_dir("/")).finish().with_code(0);
    assert_eq!((done.out().as_str(), done.err().as_str()), ("said\n700\nsandboxes\n", ""));
}
