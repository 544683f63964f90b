//! Resources of a sandbox whose record is lost: `doctor` lists them by their marks, `gc` releases them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use penfold_state::Id;
use rustix::fs::XattrFlags;
use rustix::mount::{MountFlags, mount};
use serde_json::Value;

use super::{CleanUp, Removed, assert_none_there, can_make, has_link, traces};
use crate::support::{PATIENCE, Running, TestEnv, USER, entries, fresh_id, has_program, penfold, wait_until};

fn sh(script: &str) {
    Running::start(Command::new("sh").args(["-ec", script])).finish().with_code(0);
}

/// The number of a sandbox's namespace: FNV-1a of its id and `net`, in the upper half of the positive numbers.
fn number(id: &str) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    id.bytes().chain(*b"net").fold(0x811c_9dc5, mix) & 0x3fff_ffff | 0x4000_0000
}

fn kinds(listed: &str, id: &str) -> Vec<String> {
    let listed: Value = serde_json::from_str(listed).unwrap();
    let all = listed["leaks"].as_array().unwrap().iter();
    let mut kinds: Vec<String> =
        all.filter(|leak| leak["id"] == id).map(|leak| leak["kind"].as_str().unwrap().to_owned()).collect();
    kinds.sort_unstable();
    kinds
}

/// spec: 18.8
#[test]
fn they_are_listed_and_collected_by_their_marks() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let (id, other) = (Id::new().unwrap().short(), Id::new().unwrap().short());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let (boot, work) = (boot.trim(), env.path("work"));
    let (files, layers) =
        (work.join("files").display().to_string(), work.join("layers").display().to_string());
    let _clean_up = CleanUp(format!(
        "umount {layers} {files}; ip netns del penfold-{id}; ip link del pf-{id}; ip link del pf-{other}"
    ));
    sh(&format!(
        "mkdir -p {files} {layers} {0}/lower {0}/upper {0}/under
        ip netns add penfold-{id}; ip netns set penfold-{id} {2}; ip link add pf-{id} type veth peer name peer-{1}; ip link set pf-{id} alias 'penfold {id} {boot}'
        mount -t tmpfs penfold-{id} {files}
        mount -t overlay penfold-{id} -o lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/under {layers}",
        work.display(),
        &id[..6],
        number(&id)
    ));
    // These have no mark, or that of another.
    sh(&format!("ip link add pf-{other} type veth peer name peer-{}", &other[..6]));
    assert_eq!(traces(&env, &id).len(), 5, "{:?}", traces(&env, &id));
    let listed = env.call(["doctor", "--json"]).with_code(1).out();
    assert_eq!(kinds(&listed, &id), ["link", "mount", "mount", "netns"]);
    assert_eq!(kinds(&listed, &other), Vec::<String>::new());
    // They are younger than ten minutes.
    env.call(["gc", "-f"]).with_code(0);
    assert_eq!(traces(&env, &id).len(), 5);
    env.call(["gc", "-f", "--older-than", "0", "--kind", "netns", &id]).with_code(0);
    assert_eq!(traces(&env, &id).len(), 3);
    // What somebody holds may be alive: only its id ends it, and only once it is let go.
    let held = fs::File::create(format!("{files}/open")).unwrap();
    env.call(["gc", "-f", "--older-than", "0", "--patience", PATIENCE, &id]).with_code(5);
    drop(held);
    env.call(["gc", "-f", "--older-than", "0", &id]).with_code(0);
    assert_none_there(&env, &id);
    assert!(has_link(&format!("pf-{other}")));
    env.assert_nothing_left();
}

/// Makes a directory as penfold makes a workspace or a directory for sockets.
fn mark(path: &Path, id: &str) {
    fs::create_dir_all(path).unwrap();
    // A boot that was before this one: directories outlive boots.
    let text = format!("{id} 0b9d2c1e-7a55-4f6b-9c3d-1e2f3a4b5c6d");
    rustix::fs::setxattr(path, "trusted.penfold", text.as_bytes(), XattrFlags::CREATE).unwrap();
    fs::write(path.join("file"), "").unwrap();
}

/// spec: 18.8, 5.17
#[test]
fn directories_and_loop_devices_are_found_where_sandboxes_have_theirs() {
    if !can_make() || !has_program(&["losetup", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    // Loop devices are seen in all namespaces, but not this file.
    mount("none", env.path("tmp"), "tmpfs", MountFlags::empty(), None).unwrap();
    let (id, stranger) = (fresh_id(), fresh_id());
    let (upper, sockets) = (env.path("tmp").join(format!("penfold-{id}-upper0")), env.root().join("sockets"));
    let (lost, sockets_of) = (env.path("work/lost"), sockets.join(&id));
    for path in [&upper, &lost, &sockets_of] {
        mark(path, &id);
    }
    // These have no mark, or another user made them.
    fs::create_dir(sockets.join(&stranger)).unwrap();
    mark(&env.path("tmp/others"), &stranger);
    std::os::unix::fs::chown(env.path("tmp/others"), Some(USER), Some(USER)).unwrap();
    let disk = upper.join("disk");
    let _clean_up =
        CleanUp(format!("for d in $(losetup -nO NAME -j {}); do losetup -d $d; done", disk.display()));
    sh(&format!("truncate -s 1M {0}; losetup -f {0}", disk.display()));

    let begun = Instant::now();
    let listed = env.call(["doctor", "--json"]).with_code(1).out();
    assert!(begun.elapsed() >= Duration::from_secs(2), "a finding is looked for three times");
    // No record names the directory in which the workspace is.
    assert_eq!(kinds(&listed, &id), ["directory", "directory", "loop"]);
    assert_eq!(kinds(&listed, &stranger), Vec::<String>::new());
    let near = env.path("work/near");
    let sandbox = env.detach(["--workspace", near.to_str().unwrap(), "--", "sleep", "3771"]);
    let removed = Removed(&env, &sandbox);
    let listed = env.call(["doctor", "--json"]).out();
    assert_eq!(kinds(&listed, &id), ["directory", "directory", "directory", "loop"]);
    assert_eq!(kinds(&listed, &sandbox.id), Vec::<String>::new());
    let text = env.call(["doctor"]).with_code(1).out();
    assert!(text.contains(&format!("directory {} with the mark of {id}", lost.display())), "{text}");
    assert!(text.contains(&format!("of {}, ", disk.display())), "{text}");
    assert!(text.contains(&format!("gc --older-than 0 {id}")), "{text}");

    // They are younger than ten minutes.
    env.call(["gc", "-f"]).with_code(0);
    assert!(upper.is_dir() && lost.is_dir() && sockets_of.is_dir());
    let dry = env.call(["gc", "-n", "--older-than", "0", "--kind", "loop"]).with_code(0).out();
    assert!(dry.contains("would remove loop device") && dry.lines().count() == 1, "{dry}");
    // What a process holds goes only by its id.
    let held = fs::File::open(lost.join("file")).unwrap();
    env.call(["gc", "-f", "--older-than", "0", "--kind", "loop,directory"]).with_code(0);
    assert!(!upper.try_exists().unwrap() && lost.is_dir() && !sockets_of.try_exists().unwrap());
    let left = env.call(["doctor", "--json"]).out();
    assert_eq!(kinds(&left, &id), ["directory"]);
    drop(held);
    env.call(["gc", "-f", "--older-than", "0", &id]).with_code(0);
    assert!(!lost.try_exists().unwrap() && near.is_dir() && sockets.join(&stranger).is_dir());
    assert!(env.path("tmp/others").is_dir());
    drop(removed);
    rustix::mount::unmount(env.path("tmp"), rustix::mount::UnmountFlags::DETACH).unwrap();
    env.assert_nothing_left();
}

/// spec: 18.8, 5.13
#[test]
fn the_workspace_of_a_sandbox_of_another_state_root_stays() {
    let env = TestEnv::new();
    let space = env.path("tmp/space");
    // Neither a leaf, nor the environment, nor a working directory shows that it lives.
    let script = "cd /; exec env -i sleep 3781";
    let words =
        ["run", "--contain", "subreaper", "--workspace", space.to_str().unwrap(), "--", "sh", "-c", script];
    let running = Running::start(&mut env.penfold(words));
    wait_until("it runs", || env.is_running("sleep 3781") && space.is_dir());
    let id = entries(&env.root().join("sandboxes"))[0].file_name().unwrap().to_str().unwrap().to_owned();
    let other = env.path("other");
    fs::create_dir(&other).unwrap();
    let elsewhere = |words: &[&str]| {
        Running::start(env.command(penfold()).arg("--root").arg(&other).args(words)).finish()
    };
    assert_eq!(kinds(&elsewhere(&["doctor", "--json"]).out(), &id), Vec::<String>::new());
    elsewhere(&["gc", "-f", "--older-than", "0", "--kind", "directory"]).with_code(0);
    assert!(space.is_dir() && env.is_running("sleep 3781"));
    // A container with the same temporary directory sees no process of it.
    let contained = |words: &[&str]| {
        let mut command = env.command("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(penfold());
        Running::start(command.arg("--root").arg(&other).args(words)).finish()
    };
    if can_make() {
        assert_eq!(kinds(&contained(&["doctor", "--json"]).out(), &id), Vec::<String>::new());
        contained(&["gc", "-f", "--older-than", "0", "--kind", "directory"]).with_code(0);
        contained(&["gc", "-f", &id]).with_code(3);
        assert!(space.is_dir() && env.is_running("sleep 3781"));
    }
    running.signal(rustix::process::Signal::TERM);
    running.finish();
    env.assert_nothing_left();
    assert!(!space.try_exists().unwrap());
}
