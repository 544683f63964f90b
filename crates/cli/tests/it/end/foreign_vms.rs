//! `penfold doctor --foreign` and `penfold gc --foreign` on virtual machines that penfold did not start. Copies of a shell stand
//! for the monitors.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::Value;

use crate::resources::can_make;
use crate::support::{
    Finished, PATIENCE, Process, Running, Terminal, TestEnv, USER, Who, children, descendants, fresh_id,
    has_program, is_root, penfold, remove_dir, wait_until,
};

/// A tree that belongs to no test process any more; killed when dropped.
struct Tree {
    top: Process,
    members: Vec<Process>,
}

/// A command that leaves a script behind in a session of its own, and prints its pid.
fn leaving(env: &TestEnv, script: &str) -> Command {
    let mut command = env.command("bash");
    let leave = r#"(setsid "$@" >/dev/null 2>&1 </dev/null & echo $!)"#;
    command.args(["-c", leave, "bash", "bash", "-c", script]);
    command
}

impl Tree {
    /// Leaves a script behind in a session of its own, given to init by the kernel, in this directory. `$FC` is a monitor.
    fn leave(env: &TestEnv, directory: &Path, script: &str, processes: usize) -> Tree {
        // Orphans of a subreaper would come to this process, which is no init.
        rustix::process::set_child_subreaper(None).unwrap();
        let mut command = leaving(env, script);
        command.env("FC", monitor(env, "firecracker")).current_dir(directory);
        if env.is_ordinary() {
            command.uid(USER).gid(USER);
        }
        let pid: i32 = Running::start(&mut command).finish().with_code(0).out().trim().parse().unwrap();
        Tree::of(pid, processes)
    }

    /// Waits until so many processes are there.
    fn of(pid: i32, processes: usize) -> Tree {
        let top = Process::find(pid).expect("a tree");
        let pids = || [vec![pid], descendants(pid)].concat();
        // Before its exec, a child has the arguments of its parent.
        let lines = || {
            pids().into_iter().filter_map(Process::find).map(|one| one.command_line()).collect::<HashSet<_>>()
        };
        wait_until("the tree stands", || pids().len() == processes && lines().len() == processes);
        Tree { top, members: pids().into_iter().filter_map(Process::find).collect() }
    }

    /// The process that runs a monitor.
    fn monitor(&self) -> &Process {
        let is_monitor = |member: &&Process| {
            let name = fs::read_link(format!("/proc/{}/exe", member.pid())).unwrap_or_default();
            name.ends_with("firecracker") || name.to_string_lossy().contains("qemu-system-")
        };
        self.members.iter().find(is_monitor).expect("a monitor")
    }

    fn is_alive(&self) -> bool {
        self.members.iter().all(|member| !member.has_ended())
    }

    #[track_caller]
    fn assert_gone(&self) {
        for member in &self.members {
            assert!(member.has_ended(), "{} lives", member.command_line());
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for pid in [vec![self.top.pid()], descendants(self.top.pid())].concat() {
            if let Some(process) = Process::find(pid).filter(|_| !self.top.has_ended()) {
                process.signal(Signal::KILL);
            }
        }
        for member in &self.members {
            member.signal(Signal::KILL);
        }
    }
}

/// A copy of the shell under the name of a monitor.
fn monitor(env: &TestEnv, name: &str) -> PathBuf {
    let copy = env.path(name);
    if !copy.try_exists().unwrap() {
        fs::copy("/bin/sh", &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

/// The words with which a monitor sleeps. They are no arguments of a monitor.
fn sleeps(seconds: &str) -> String {
    format!(r#""$FC" -c "sleep {seconds}; :" fc"#)
}

fn list(env: &TestEnv) -> Vec<Value> {
    env.call(["doctor", "--foreign", "--json"]).json()["foreign"]["vms"].as_array().unwrap().clone()
}

/// The virtual machine of this monitor.
#[track_caller]
fn vm(env: &TestEnv, monitor: &Process) -> Value {
    let all = list(env);
    let found = all.iter().find(|vm| vm["pid"] == monitor.pid());
    found.unwrap_or_else(|| panic!("no {} in {all:?}", monitor.pid())).clone()
}

fn end(env: &TestEnv, word: &str) -> Finished {
    env.call(["gc", "--foreign", "-f", word])
}

/// A name as runners generate them: with letters and digits.
fn vm_id() -> String {
    format!("a1{}", fresh_id())
}

/// A directory with an id in its name.
fn directory(env: &TestEnv, kind: &str, id: &str) -> PathBuf {
    let path = env.path("work").join(format!("{kind}-{id}"));
    fs::create_dir_all(path.join("below")).unwrap();
    fs::write(path.join("below/file"), "").unwrap();
    path
}

/// spec: 5.18
#[test]
fn an_orphan_goes_with_its_wrappers_and_its_directories() {
    let env = TestEnv::new();
    let (id, other) = (vm_id(), vm_id());
    let (space, sock) = (directory(&env, "vm", &id), directory(&env, "sock", &id));
    let (space2, sock2) = (directory(&env, "vm", &other), directory(&env, "sock", &other));
    let outside = env.path("work/outside");
    fs::write(&outside, "").unwrap();
    std::os::unix::fs::symlink(&outside, space.join("link")).unwrap();
    let script = |sock: &Path| {
        let fc = sleeps("3801");
        format!("env A=1 nice bash -c '{fc} --api-sock {}/api.sock; exit'; exit", sock.display())
    };
    let tree = Tree::leave(&env, &space, &script(&sock), 4);
    let other = Tree::leave(&env, &space2, &script(&sock2), 4);

    let found = vm(&env, tree.monitor());
    assert_eq!(
        (&found["id"], &found["state"], &found["wrappers"]),
        (&id.as_str().into(), &"orphan".into(), &2.into())
    );
    assert_eq!(found["ancestors"][2]["pid"], 1, "{found}");
    assert_eq!(found["directory"], space.display().to_string());
    assert_eq!(found["socket"], sock.join("api.sock").display().to_string());
    let text = env.call(["doctor", "--foreign"]).with_code(1).out();
    assert!(text.contains(&format!("penfold gc --foreign {id}")), "{text}");
    let below = format!("below bash ({}) < bash ({}) < ", found["ancestors"][0]["pid"], tree.top.pid());
    assert!(text.contains(&below), "{text}");
    let dry = env.call(["gc", "--foreign", "-n", &id]).with_code(0).out();
    assert!(dry.contains(&format!("would remove {}", space.display())), "{dry}");
    assert!(tree.is_alive() && other.is_alive() && space.is_dir());
    // Nobody can be asked.
    env.call(["gc", "--foreign", &id]).with_code(2);
    assert!(tree.is_alive());

    let done = end(&env, &id[..8]).with_code(0).out();
    assert_eq!(done, format!("[ok]   {}\n[ok]   {}\n", sock.display(), space.display()));
    tree.assert_gone();
    assert!(!space.try_exists().unwrap() && !sock.try_exists().unwrap() && outside.try_exists().unwrap());
    assert!(other.is_alive() && space2.is_dir() && sock2.is_dir());

    // By the pid of a wrapper. What is gone already is fine.
    remove_dir(&sock2);
    let words = ["gc", "--foreign", "-f", "--json", &other.top.pid().to_string()];
    let done = env.call(words).with_code(0).json();
    assert_eq!((&done["verified"], &done["vm"]["state"]), (&true.into(), &"orphan".into()), "{done}");
    let removed: Vec<_> = done["removed"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(removed, ["removed", "removed"], "{done}");
    other.assert_gone();
    assert!(!space2.try_exists().unwrap());
}

/// spec: 5.18
#[test]
fn a_living_runner_keeps_its_directories_and_lives_on() {
    if !crate::support::has_readable_ancestors() {
        return;
    }
    let env = TestEnv::new();
    let id = vm_id();
    let (space, sock) = (directory(&env, "vm", &id), directory(&env, "sock", &id));
    let fc = sleeps("3811");
    // A shell with another child is shared.
    let script =
        format!("bash -c '{fc} --api-sock={}/api.sock; exit' & sleep 3812 & wait; wait", sock.display());
    let mut command = env.command("bash");
    command.args(["-c", &script]).env("FC", monitor(&env, "firecracker")).current_dir(&space);
    let runner = Running::start(&mut command);
    let tree = Tree::of(runner.pid(), 5);
    let found = vm(&env, tree.monitor());
    assert_eq!((&found["state"], &found["wrappers"]), (&"managed".into(), &1.into()), "{found}");
    assert_eq!(found["ancestors"][1]["pid"], runner.pid());
    assert_eq!(found["directories"], Value::Array(Vec::new()));
    let text = env.call(["doctor", "--foreign"]).out();
    assert!(text.contains(&format!("managed by bash ({})", runner.pid())), "{text}");

    let wrapper =
        Process::find(i32::try_from(found["ancestors"][0]["pid"].as_i64().unwrap()).unwrap()).unwrap();
    let monitor = Process::find(tree.monitor().pid()).unwrap();
    let done = end(&env, &id).with_code(0);
    assert!(done.err().contains(&format!("left to its runner bash ({})", runner.pid())), "{}", done.err());
    assert!(monitor.has_ended() && wrapper.has_ended());
    assert!(space.is_dir() && sock.is_dir());
    assert!(!tree.top.has_ended() && env.is_running("sleep 3812"));
}

/// spec: 5.18
#[test]
fn a_directory_that_may_be_anothers_stays() {
    let env = TestEnv::new();
    let id = vm_id();
    // A person may have chosen this name.
    let chosen = env.path("work/blue");
    fs::create_dir(&chosen).unwrap();
    let tree = Tree::leave(&env, &chosen, &format!("{} --api-sock ./api.sock; exit", sleeps("3821")), 3);
    let found = vm(&env, tree.monitor());
    assert_eq!((&found["id"], &found["state"]), (&"blue".into(), &"orphan".into()), "{found}");
    let done = end(&env, "blue").with_code(0).out();
    assert!(done.starts_with(&format!("[kept] {}: ", chosen.display())), "{done}");
    tree.assert_gone();
    assert!(chosen.is_dir());

    // Another process is in the workspace, and another VM has its socket beside.
    let (space, sock) = (directory(&env, "vm", &id), directory(&env, "sock", &id));
    let _inside = Running::start(env.command("sleep").arg("3823").current_dir(space.join("below")));
    let script = |name: &str| format!("{} --api-sock {}/{name}; exit", sleeps("3822"), sock.display());
    let tree = Tree::leave(&env, &space, &script("a.sock"), 3);
    let other = Tree::leave(&env, &env.path("tmp"), &script("b.sock"), 3);
    let ids =
        [vm(&env, tree.monitor()), vm(&env, other.monitor())].map(|vm| vm["id"].as_str().unwrap().to_owned());
    assert_eq!(ids, [&tree, &other].map(|tree| format!("{id}-{}", tree.monitor().pid())), "different ids");
    env.call(["gc", "--foreign", "-f", &id]).with_code(4);
    let done = end(&env, &ids[0]).with_code(0).out();
    assert!(done.contains(&format!("[kept] {}: the VM of process", sock.display())), "{done}");
    assert!(done.contains(&format!("[kept] {}: a process uses it: `sleep`", space.display())), "{done}");
    tree.assert_gone();
    assert!(other.is_alive() && space.is_dir() && sock.is_dir());
}

/// spec: 5.18
#[test]
fn a_directory_with_an_open_file_or_that_was_moved_stays() {
    let env = TestEnv::new();
    let id = vm_id();
    let space = directory(&env, "vm", &id);
    fs::write(space.join("disk"), "data").unwrap();
    let mut holder = env.command("sh");
    holder.args(["-c", "exec sleep 3825 3<\"$DISK\""]).env("DISK", space.join("disk"));
    let holder = Running::start(&mut holder);
    wait_until("the disk is open", || env.is_running("sleep 3825"));
    let tree = Tree::leave(&env, &space, &format!("{}; exit", sleeps("3826")), 3);
    let done = end(&env, &id).with_code(0).out();
    assert!(done.starts_with(&format!("[kept] {}: a process uses it: `sleep`", space.display())), "{done}");
    tree.assert_gone();
    holder.signal(Signal::KILL);
    drop(holder.finish());

    // The monitor does not react to TERM. Meanwhile somebody moves the directory to save it.
    let deaf = format!("trap '' TERM; {}; exit", sleeps("3827"));
    let tree = Tree::leave(&env, &space, &deaf, 3);
    let running = env.begin(["gc", "--foreign", "-f", "-t", "2s", &id]);
    let saved = env.path("work/saved");
    wait_until("gc holds the directory", || holds(running.pid(), &space));
    fs::rename(&space, &saved).unwrap();
    let done = running.finish().with_code(5);
    assert!(done.out().starts_with(&format!("[fail] {}: it was moved", space.display())), "{}", done.out());
    assert_eq!(fs::read(saved.join("disk")).unwrap(), b"data");
    tree.assert_gone();
}

/// Whether a process has a directory open.
fn holds(pid: i32, directory: &Path) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target == directory)
}

/// spec: 5.18
#[test]
fn a_directory_that_cannot_be_removed_is_named() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let id = vm_id();
    let (space, sock) = (directory(&env, "vm", &id), directory(&env, "sock", &id));
    mount("none", space.join("below"), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(space.join("below/mounted"), "").unwrap();
    let script = format!("{} --api-sock {}/api.sock; exit", sleeps("3831"), sock.display());
    let tree = Tree::leave(&env, &space, &script, 3);
    let done = end(&env, &id).with_code(5).out();
    assert!(done.contains(&format!("[fail] {}: ", space.display())), "{done}");
    assert!(done.contains(&format!("[ok]   {}\n", sock.display())), "{done}");
    tree.assert_gone();
    assert!(!sock.try_exists().unwrap() && space.join("below/mounted").try_exists().unwrap());
    unmount(space.join("below"), UnmountFlags::empty()).unwrap();
}

/// spec: 5.18
#[test]
fn on_a_terminal_a_person_is_asked_and_the_answer_is_checked() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let id = vm_id();
    let space = directory(&env, "vm", &id);
    let tree = Tree::leave(&env, &space, &format!("{}; exit", sleeps("3841")), 3);
    let found = vm(&env, tree.monitor());
    let gc = format!("{} --root {} gc --foreign {id}", penfold().display(), env.root().display());
    let line = format!(
        "  {id}  firecracker, pid {}, parent bash ({}), orphan",
        tree.monitor().pid(),
        found["ancestors"][0]["pid"]
    );
    for answer in ["n", "", "C-d"] {
        terminal.line(&gc);
        terminal.shows(&line);
        terminal.shows("End this VM? [y/N]*");
        if answer == "C-d" {
            terminal.press(answer);
        } else {
            terminal.line(answer);
        }
        terminal.ends_with(2);
        assert!(tree.is_alive());
    }
    terminal.line(&gc);
    terminal.shows("End this VM? [y/N]*");
    terminal.line("y");
    terminal.ends_with(0);
    tree.assert_gone();
    assert!(!space.try_exists().unwrap());
}

/// spec: 5.18
#[test]
fn a_vm_whose_chain_changes_during_the_question_is_not_ended() {
    if !crate::support::has_readable_ancestors() {
        return;
    }
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let id = vm_id();
    let space = directory(&env, "vm", &id);
    rustix::process::set_child_subreaper(None).unwrap();
    let script = format!("setsid {} & sleep 3852 & wait; wait", sleeps("3851"));
    let mut command = env.command("bash");
    command.args(["-c", &script]).env("FC", monitor(&env, "firecracker")).current_dir(&space);
    let runner = Running::start(&mut command);
    let tree = Tree::of(runner.pid(), 4);
    let monitor = Process::find(tree.monitor().pid()).unwrap();
    assert_eq!(vm(&env, &monitor)["state"], "managed");
    terminal.line(&format!("{} --root {} gc --foreign {id}", penfold().display(), env.root().display()));
    terminal.shows("End this VM? [y/N]*");
    tree.top.signal(Signal::KILL);
    drop(runner);
    wait_until("it is an orphan", || vm(&env, &monitor)["state"] == "orphan");
    terminal.line("y");
    terminal.ends_with(2);
    assert!(!monitor.has_ended() && space.is_dir());
}

/// spec: 5.18
#[test]
fn what_is_no_vm_of_others_is_not_listed() {
    let env = TestEnv::new();
    let id = vm_id();
    let space = directory(&env, "vm", &id);
    // Of a script, only the main thread has the name.
    let script = env.path("cloud-hypervisor");
    fs::write(&script, "#!/bin/sh\nsleep 3861; :\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let shell = Running::start(env.command(script).current_dir(&space));
    let sandbox = env.detach([monitor(&env, "firecracker").to_str().unwrap(), "-c", "sleep 3862; :"]);
    wait_until("both run", || env.is_running("sleep 3861") && env.is_running("sleep 3862"));
    let named = fs::read_to_string(format!("/proc/{}/comm", shell.pid())).unwrap();
    assert!(named.starts_with("cloud-hyperviso"), "{named}");
    let members = sandbox.members(&env);
    let listed: Vec<i64> = list(&env).iter().map(|vm| vm["pid"].as_i64().unwrap()).collect();
    let ours = members.iter().map(Process::pid).chain([shell.pid()]);
    assert!(ours.into_iter().all(|pid| !listed.contains(&i64::from(pid))), "{listed:?}");
    let leader = members.iter().find(|member| member.command_line().contains("firecracker")).unwrap();
    end(&env, &leader.pid().to_string()).with_code(2);
    assert!(!leader.has_ended());
    for word in ["no-such-vm", ""] {
        end(&env, word).with_code(3);
    }
    env.call(["kill", &sandbox.id]).with_code(0);
}

/// spec: 5.18
#[test]
fn an_ordinary_user_ends_only_own_ones() {
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    let (id, other) = (vm_id(), vm_id());
    let (space, space2) = (directory(&env, "vm", &id), directory(&env, "vm", &other));
    let stays = space.join("below");
    std::os::unix::fs::chown(&space, Some(USER), Some(USER)).unwrap();
    let tree = Tree::leave(&env, &space, &format!("{}; exit", sleeps("3871")), 3);
    rustix::process::set_child_subreaper(None).unwrap();
    let mut command = Command::new("setsid");
    command.args(["bash", "-c", &format!("{}; exit", sleeps("3872"))]).current_dir(&space2);
    let roots = Running::start(command.env("FC", monitor(&env, "firecracker")));
    let roots_tree = Tree::of(roots.pid(), 3);
    let listed: Vec<Value> = list(&env).iter().map(|vm| vm["id"].clone()).collect();
    assert!(listed.contains(&id.as_str().into()) && !listed.contains(&other.as_str().into()), "{listed:?}");
    end(&env, &other).with_code(3);
    assert!(roots_tree.is_alive());
    // The directory below is root's, and has a file.
    let done = env.call(["gc", "--foreign", "-f", "--patience", PATIENCE, &id]).with_code(5).out();
    assert!(done.contains(&format!("[fail] {}: ", space.display())), "{done}");
    assert!(done.contains("not permitted"), "{done}");
    tree.assert_gone();
    assert!(stays.join("file").try_exists().unwrap());
}

/// spec: 5.18
#[test]
fn a_real_monitor_goes_with_sudo_and_its_namespace() {
    let qemu = ["qemu-system-x86_64", "--version"];
    if !is_root() || !has_program(&qemu) || !has_program(&["unshare", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    // The environment of a test makes this process a subreaper, to which orphans would come: it is no init.
    rustix::process::set_child_subreaper(None).unwrap();
    let id = vm_id();
    let (space, sock) = (directory(&env, "vm", &id), directory(&env, "sock", &id));
    let sudo = if has_program(&["sudo", "-n", "true"]) { "sudo -n" } else { "env" };
    let script = format!(
        "{sudo} unshare -m -- bash -c 'qemu-system-x86_64 -M none -nographic -S -qmp unix:{}/qmp.sock,server=on,wait=off; exit'; exit",
        sock.display()
    );
    let mut command = leaving(&env, &script);
    command.current_dir(&space).stdin(Stdio::null());
    let pid: i32 = Running::start(&mut command).finish().with_code(0).out().trim().parse().unwrap();
    wait_until("it listens", || sock.join("qmp.sock").try_exists().unwrap());
    let tree = Tree::of(pid, 1 + descendants(pid).len());
    let found = vm(&env, tree.monitor());
    assert_eq!((&found["id"], &found["state"]), (&id.as_str().into(), &"orphan".into()), "{found}");
    assert_eq!(found["wrappers"], tree.members.len() - 1, "{found}");
    let done = end(&env, &id).with_code(0).out();
    assert_eq!(done, format!("[ok]   {}\n[ok]   {}\n", sock.display(), space.display()));
    tree.assert_gone();
    assert!(!space.try_exists().unwrap() && !sock.try_exists().unwrap() && children(pid).is_empty());
}
