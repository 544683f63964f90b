//! `penfold guard`: what tests leave besides processes.

use crate::support::{Finished, Running, TestEnv, has_program, is_root, json, skip};

/// Runs the guard below these words, such as `unshare -n`.
fn below(env: &TestEnv, words: &[&str], script: &str) -> Finished {
    let mut command = env.command(words[0]);
    command.args(&words[1..]).arg(crate::support::penfold()).arg("--root").arg(env.root());
    Running::start(command.args(["guard", "-t", "10ms", "--report", "r.json", "--", "sh", "-c", script]))
        .finish()
}

/// The lines about what appeared.
fn appeared(done: &Finished) -> Vec<String> {
    let err = done.err();
    let lines = err.lines().filter_map(|line| line.split_once("perhaps made by others: "));
    lines.map(|(_, thing)| thing.to_owned()).collect()
}

/// All that is named, with its maker or without: whether the guard has seen the maker is luck, if it lives for milliseconds only.
fn named(done: &Finished) -> Vec<String> {
    let err = done.err();
    let lines = err.lines().filter_map(|line| line.split_once("left, and no process: "));
    let things =
        lines.map(|(_, thing)| thing.split_once(", of ").map_or(thing, |(thing, _)| thing).to_owned());
    appeared(done).into_iter().chain(things).collect()
}

/// spec: 21.10
#[test]
fn objects_of_the_namespaces_of_the_guard_are_named() {
    let env = TestEnv::new();
    if !is_root() || !has_program(&["unshare", "-n", "-i", "true"]) || !has_program(&["ipcmk", "--version"]) {
        return skip("no namespaces can be made, or there is no ipcmk");
    }
    // Of the host, nothing appears in these namespaces.
    let host = env.command("ipcmk").args(["-M", "64"]).output().unwrap();
    let number = String::from_utf8(host.stdout).unwrap().rsplit(' ').next().unwrap().trim().to_owned();
    let script =
        "ipcmk -M 64 -Q -S 1 >&2; ip link add pf-bridge type bridge; nft add table inet pf_test; exit 0";
    let done = below(&env, &["unshare", "-n", "-i"], script).with_code(0);
    assert!(env.command("ipcrm").args(["-m", &number]).status().unwrap().success());
    let found = named(&done);
    let mut expected = vec!["SysV message queue 0", "SysV semaphores 0", "SysV shared memory 0"];
    if has_program(&["unshare", "-n", "ip", "link", "add", "pf-bridge", "type", "bridge"]) {
        expected.push("link pf-bridge");
    }
    if has_program(&["unshare", "-n", "nft", "add", "table", "inet", "pf_test"]) {
        expected.push("nft table inet pf_test");
    }
    for thing in &expected {
        assert!(found.iter().any(|found| found == thing), "no `{thing}` in {found:?} {}", done.err());
    }
    let of_namespaces = |found: &&String| ["SysV", "link", "nft"].iter().any(|kind| found.starts_with(kind));
    assert_eq!(found.iter().filter(of_namespaces).count(), expected.len(), "{found:?}");
    env.assert_nothing_left();
}

/// spec: 21.10
#[test]
fn shared_memory_loop_devices_and_cgroups_are_named() {
    let env = TestEnv::new();
    let name = format!("pf-test-{}", std::process::id());
    let file = format!("/dev/shm/{name}");
    let done = below(&env, &["env"], &format!("touch {file} /dev/shm/sem.{name}; exit 0")).with_code(0);
    let _ = std::fs::remove_file(&file);
    let _ = std::fs::remove_file(format!("/dev/shm/sem.{name}"));
    let found = appeared(&done);
    for thing in [format!("POSIX shared memory {name}"), format!("POSIX semaphore {name}")] {
        assert!(found.contains(&thing), "no `{thing}` in {found:?}");
    }
    if is_root()
        && let Ok(place) = penfold_cgroup::LeafPlace::find_here()
    {
        let directory = place.path().join(&name);
        let done = below(&env, &["env"], &format!("mkdir {}; exit 0", directory.display())).with_code(0);
        let thing = format!("cgroup {}", directory.display());
        let _ = std::fs::remove_dir(&directory);
        assert!(appeared(&done).contains(&thing), "no `{thing}` in {}", done.err());
    }
    env.assert_nothing_left();
}

/// spec: 21.10
#[test]
fn objects_of_members_are_named_with_their_maker() {
    let env = TestEnv::new();
    if !has_program(&["perl", "-MSocket", "-e", "1"]) {
        return skip("there is no perl");
    }
    // The leak and its objects: a socket with a relative path, and shared memory.
    let maker = "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un('left.sock')) or die; listen(S, 1);
        $id = shmget(0, 64, 0600); die unless defined $id; open(F, '>', 'id'); print F $id; close F; rename('id', 'made'); sleep 1000";
    std::fs::write(env.path("work/maker.pl"), maker).unwrap();
    let script = "setsid perl maker.pl & until [ -e made ]; do sleep 0.05; done; exit 0";
    let done = below(&env, &["env"], script).with_code(123);
    let id = std::fs::read_to_string(env.path("work/made")).unwrap();
    let removed = env.command("ipcrm").args(["-m", &id]).status();
    assert!(removed.is_ok_and(|status| status.success()));
    let report = json(&env.path("work/r.json")).unwrap();
    let path = env.path("work").canonicalize().unwrap().join("left.sock");
    for (kind, name) in [("socket", path.to_str().unwrap()), ("SysV shared memory", id.as_str())] {
        let object =
            report["objects"].as_array().unwrap().iter().find(|object| object["kind"] == kind).unwrap();
        assert_eq!((&object["name"], &object["command"]), (&name.into(), &"perl maker.pl".into()));
        let line = format!("left, and no process: {kind} {name}, of perl maker.pl (pid {})", object["pid"]);
        assert!(done.err().contains(&line), "no `{line}` in {}", done.err());
        assert!(!appeared(&done).iter().any(|thing| *thing == format!("{kind} {name}")), "{}", done.err());
    }
    std::fs::remove_file(path).unwrap();
    env.assert_nothing_left();
}
