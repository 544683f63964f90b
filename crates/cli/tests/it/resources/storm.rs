//! Many sandboxes with namespace, tap, overlay and sockets, started and ended at random in parallel: the host is as before.
//!
//! The judge is `scripts/host-snapshot`, which knows nothing of penfold's records.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use penfold_state::Id;
use rustix::process::Signal;

use super::{CleanUp, can_make, flags, traces};
use crate::state::crash::can_crash;
use crate::support::{Running, TestEnv, entries, kill_at_once};

/// The lines of the snapshot that are about this environment or these ids: other tests run beside.
fn snapshot(env: &TestEnv, ids: &BTreeSet<String>) -> BTreeSet<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/host-snapshot");
    let mut command = Command::new(script);
    command.args([env.path("work"), env.path("tmp"), env.path("root")]).stderr(Stdio::null());
    let text = Running::start(&mut command).finish().with_code(0).out();
    let place = env.path("").display().to_string();
    let is_ours = |line: &&str| line.contains(&place) || ids.iter().any(|id| line.contains(id.as_str()));
    text.lines().filter(is_ours).map(str::to_owned).collect()
}

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// One life of a sandbox.
fn live(env: &TestEnv, number: usize, random: &mut Random, ids: &Mutex<BTreeSet<String>>) {
    let work = env.path("work").join(number.to_string());
    let work = work.display();
    fs::create_dir_all(format!("{work}/root")).unwrap();
    let words = [
        "--netns".to_owned(),
        "--tap".to_owned(),
        "--sockets".to_owned(),
        format!("--workspace={work}/space"),
        format!("--mount=type=overlay,lower=/etc,target={work}/root"),
        "--grace=50ms".to_owned(),
        "--".to_owned(),
        "sh".to_owned(),
        "-c".to_owned(),
        "setsid sleep 1000 & touch ../root/new junk; sleep 0.$1".to_owned(),
        "sh".to_owned(),
        random.below(9).to_string(),
    ];
    let sandbox = env.detach(words.iter().map(String::as_str));
    ids.lock().unwrap().insert(sandbox.id.clone());
    let supervisors: Vec<_> = sandbox.supervisors.iter().collect();
    match random.below(6) {
        0 => drop(sandbox.call(env, &["stop", "ID"])),
        1 => drop(sandbox.call(env, &["kill", "ID"])),
        2 => drop(sandbox.call(env, &["rm", "-f", "ID"])),
        3 => supervisors.iter().rev().take(1).for_each(|process| process.signal(Signal::KILL)),
        4 => kill_at_once(&supervisors),
        _ => drop(sandbox.await_end()),
    }
}

#[track_caller]
fn storm(count: usize) {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let ids = Mutex::new(BTreeSet::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (env, ids, next) = (&env, &ids, &next);
            scope.spawn(move || {
                let mut random = Random(thread);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    live(env, number, &mut random, ids);
                }
            });
        }
    });
    let ids = ids.into_inner().unwrap();
    assert_eq!(ids.len(), count);
    // Those that lost their supervisors.
    env.call(["gc", "-f"]).with_code(0);
    let records = entries(&env.path("root/sandboxes"));
    let named: Vec<&str> = records.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    if !named.is_empty() {
        env.call(["rm", "-f"].into_iter().chain(named)).with_code(0);
    }
    let mut left = snapshot(&env, &ids);
    // The test has made these, and the state root and its events stay.
    let is_expected = |line: &str| {
        let rest = line.rsplit('/').next().unwrap_or_default();
        line.starts_with("file ")
            && (rest == "root" || rest.parse::<usize>().is_ok() || line.contains("/root/"))
            && !line.contains("/root/sockets/")
            && !line.contains("/root/sandboxes/")
    };
    left.retain(|line| !is_expected(line));
    assert_eq!(left, BTreeSet::new());
    env.assert_nothing_left();
}

/// spec: 18.1, 18.6
#[test]
fn two_dozen_sandboxes_leave_the_host_as_it_was() {
    storm(24);
}

/// spec: 18.1, 18.6
#[test]
#[ignore = "the full size, for scripts/test-full"]
fn two_hundred_sandboxes_leave_the_host_as_it_was_in_full() {
    storm(200);
}

/// The judge sees a planted leak of each kind.
#[test]
fn the_snapshot_shows_one_planted_leak_of_each_kind() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let id = Id::new().unwrap().short();
    let ids = BTreeSet::from([id.clone()]);
    let work = env.path("work").display().to_string();
    fs::create_dir(env.path("work/point")).unwrap();
    fs::write(env.path("work/disk"), [0; 4096]).unwrap();
    let _clean_up = CleanUp(format!(
        "umount {work}/point; ip netns del penfold-{id}; ip link del pf-{id}; losetup -j {work}/disk -O NAME -n | xargs -r losetup -d"
    ));
    let before = snapshot(&env, &ids);
    let peer = &id[..6];
    let plant = format!(
        "ip netns add penfold-{id}; ip link add pf-{id} type veth peer name peer-{peer}
        mount -t tmpfs penfold-{id} {work}/point; losetup -f {work}/disk; mkdir {work}/left"
    );
    Running::start(Command::new("sh").args(["-ec", &plant])).finish().with_code(0);
    let socket = std::os::unix::net::UnixListener::bind(env.path("work/socket")).unwrap();
    let process = Running::start(env.command("sleep").arg("1000").env("PENFOLD_SANDBOX", &id));
    let after = snapshot(&env, &ids);
    for line in [
        format!("netns penfold-{id}"),
        format!("link pf-{id}"),
        format!("mount {work}/point tmpfs penfold-{id}"),
        format!("loop {work}/disk"),
        format!("file {work}/left"),
        format!("socket {work}/socket"),
        format!("process {} {id}", process.pid()),
    ] {
        assert!(after.contains(&line) && !before.contains(&line), "{line}: {after:?}");
    }
    drop((socket, process));
}

/// With the release left out, the look of these tests finds each kind.
#[test]
fn what_is_not_released_is_seen() {
    if !can_make() || !can_crash() {
        return;
    }
    let env = TestEnv::new();
    let work = env.path("work").display().to_string();
    let mut words = flags(&env);
    words.extend(["--", "sh", "-c", "echo $PENFOLD_SANDBOX > ../id"].map(str::to_owned));
    let mut command = env.run_command(&words);
    let done = Running::start(command.env("PENFOLD_LEAVE_OUT", "release")).finish();
    let id = fs::read_to_string(env.path("work/id")).unwrap().trim_end().to_owned();
    let clean_up = CleanUp(format!(
        "umount {work}/files {work}/layers {work}/bound; ip link del pf-{id}; ip netns del penfold-{id}; rm -rf {work}/space \
         {root}/sockets/{id} {tmp}/penfold-{id}-*",
        root = env.root().display(),
        tmp = env.path("tmp").display()
    ));
    done.with_code(0);
    super::assert_all_there(&env, &id);
    let seen = snapshot(&env, &BTreeSet::from([id.clone()]));
    for kind in ["netns", "link", "mount", "file"] {
        assert!(seen.iter().any(|line| line.starts_with(&format!("{kind} "))), "{kind}: {seen:?}");
    }
    drop(clean_up);
    assert_eq!(traces(&env, &id), Vec::<String>::new());
}
