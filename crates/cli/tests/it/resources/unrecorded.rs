//! Resources of a sandbox whose record is lost: `doctor` lists them by their marks, `gc` releases them.

use std::fs;
use std::process::Command;

use penfold_state::Id;
use serde_json::Value;

use super::{CleanUp, assert_none_there, can_make, has_link, traces};
use crate::support::{PATIENCE, Running, TestEnv};

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
    let listed = env.call(["doctor", "--json"]).out();
    assert_eq!(kinds(&listed, &id), ["link", "mount", "mount", "netns"]);
    assert_eq!(kinds(&listed, &other), Vec::<String>::new());
    assert_eq!(env.call(["doctor"]).code(), Some(1));
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
