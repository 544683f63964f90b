//! Places on a faked tree: directories with the files that a cgroup2 has.

use std::time::Duration;

use super::*;

const ALL: &str = "cpuset cpu io memory pids\n";
const MEMORY: Limits = Limits { memory_bytes: Some(512 << 20), pids: None, cpus: None };

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        tree.cgroup("", ALL, ALL, true);
        // The root has none.
        std::fs::remove_file(tree.0.path().join("cgroup.events")).unwrap();
        tree
    }

    fn path(&self, cgroup: &str) -> PathBuf {
        self.0.path().join(cgroup)
    }

    fn cgroup(&self, cgroup: &str, available: &str, enabled: &str, has_processes: bool) {
        std::fs::create_dir_all(self.path(cgroup)).unwrap();
        let procs = if has_processes { "1\n" } else { "" };
        let events = "populated 1\nfrozen 0\n";
        for (name, text) in [
            ("cgroup.controllers", available),
            ("cgroup.subtree_control", enabled),
            ("cgroup.procs", procs),
            ("cgroup.events", events),
        ] {
            self.write(cgroup, name, text);
        }
    }

    fn write(&self, cgroup: &str, name: &str, text: &str) {
        std::fs::write(self.path(cgroup).join(name), text).unwrap();
    }

    fn choose(
        &self,
        cgroup: &str,
        wanted: &Limits,
        delegated: bool,
    ) -> Result<(String, Limits, String), String> {
        let path = if cgroup.is_empty() { self.0.path().to_owned() } else { self.path(cgroup) };
        let own = CallerCgroup { path, cgroup: format!("/{cgroup}") };
        let is_delegated: fn(&Path) -> bool = if delegated { |_| true } else { |_| false };
        match choose(own, wanted, is_delegated) {
            Ok(Choice { at, limits, missing }) => {
                assert_eq!(at.path.strip_prefix(self.0.path()).unwrap(), Path::new(&at.cgroup[1..]));
                let missing: Vec<_> = missing.into_iter().map(Controller::as_str).collect();
                Ok((at.cgroup, limits, missing.join(" ")))
            }
            Err(error) => Err(error.to_string().replace(&self.0.path().display().to_string(), "ROOT")),
        }
    }
}

/// spec: 17.3
#[test]
fn the_root_of_the_hierarchy_is_a_place_and_enables_what_is_missing() {
    let tree = Tree::new();
    assert_eq!(tree.choose("", &MEMORY, false).unwrap(), ("/".to_owned(), MEMORY, String::new()));
    tree.write("", "cgroup.subtree_control", "cpu\n");
    assert_eq!(tree.choose("", &MEMORY, false).unwrap().2, "memory");
    tree.write("", "cgroup.controllers", "cpu hugetlb\n");
    let error = tree.choose("", &MEMORY, false).unwrap_err();
    assert_eq!(error, "the controller `memory` is not available in the cgroup `ROOT`");
}

/// spec: 17.3, 17.4
#[test]
fn a_service_is_no_place_and_nothing_is_made_beside_it() {
    let tree = Tree::new();
    tree.cgroup("system.slice", ALL, ALL, false);
    tree.cgroup("system.slice/a.service", ALL, "", true);
    for delegated in [false, true] {
        assert_eq!(
            tree.choose("system.slice/a.service", &MEMORY, delegated).unwrap_err(),
            "the controller `memory` cannot be enabled in the cgroup `ROOT/system.slice/a.service`, which has \
             processes of its own"
        );
    }
}

/// spec: 17.3
#[test]
fn the_cgroup_above_is_a_place_if_its_unit_is_delegated() {
    let tree = Tree::new();
    tree.cgroup("a.service", "memory pids\n", "", false);
    tree.cgroup("a.service/main", "", "", true);
    let found = tree.choose("a.service/main", &MEMORY, true).unwrap();
    assert_eq!(found, ("/a.service".to_owned(), MEMORY, "memory".to_owned()));
    assert!(tree.choose("a.service/main", &MEMORY, false).is_err());
    let cpus = Limits { cpus: Some(Duration::from_secs(1)), ..MEMORY };
    assert_eq!(
        tree.choose("a.service/main", &cpus, true).unwrap_err(),
        "the controller `cpu` is not available in the cgroup `ROOT/a.service`"
    );
    // Another process is in the way.
    tree.write("a.service", "cgroup.procs", "7\n");
    assert!(tree.choose("a.service/main", &MEMORY, true).unwrap_err().contains("has processes of its own"));
}

/// spec: 17.3
#[test]
fn a_container_that_moved_its_processes_to_a_leaf_has_a_place() {
    let tree = Tree::new();
    tree.cgroup("", ALL, "", false);
    tree.cgroup("init", "", "", true);
    assert_eq!(tree.choose("init", &MEMORY, false).unwrap(), ("/".to_owned(), MEMORY, "memory".to_owned()));
}

/// spec: 17.2
#[test]
fn the_limits_of_the_caller_hold_beside_its_cgroup() {
    let tree = Tree::new();
    tree.cgroup("", ALL, ALL, false);
    tree.cgroup("init", ALL, "", true);
    let wanted = Limits { memory_bytes: Some(512 << 20), pids: Some(50), cpus: Some(Duration::from_secs(2)) };
    tree.write("init", "memory.max", "268435456\n");
    tree.write("init", "pids.max", "100\n");
    tree.write("init", "cpu.max", "25000 50000\n");
    let strict =
        Limits { memory_bytes: Some(256 << 20), pids: Some(50), cpus: Some(Duration::from_millis(500)) };
    assert_eq!(tree.choose("init", &wanted, false).unwrap().1, strict);
    let found = tree.choose("init", &Limits { pids: Some(7), ..Limits::default() }, false).unwrap();
    assert_eq!(found.1, Limits { pids: Some(7), ..strict }, "a limit of another kind is kept too");
}

/// spec: 17.2
#[test]
fn limits_are_collected_up_to_the_common_cgroup() {
    let tree = Tree::new();
    for (cgroup, memory, pids) in
        [("", "1", "1"), ("user", "2", "max"), ("user/session", "max", "9"), ("user/session/sub", "40", "30")]
    {
        tree.cgroup(cgroup, ALL, ALL, false);
        tree.write(cgroup, "memory.max", memory);
        tree.write(cgroup, "pids.max", pids);
    }
    let limits = |other: &str| limits_of(&tree.path("user/session/sub"), &tree.path(other)).unwrap();
    assert_eq!(limits("user/manager/x.scope"), Limits { memory_bytes: Some(40), pids: Some(9), cpus: None });
    assert_eq!(limits("system/x.scope"), Limits { memory_bytes: Some(2), pids: Some(9), cpus: None });
    assert_eq!(limits("user/session/sub/leaf"), Limits::default());
}

/// spec: 17.2
#[test]
fn no_leaf_is_made_beside_the_leaf_of_an_enclosing_sandbox() {
    let tree = Tree::new();
    tree.cgroup("x.scope", ALL, ALL, false);
    tree.cgroup("x.scope/penfold-0123456789ab", ALL, "", true);
    assert!(tree.choose("x.scope/penfold-0123456789ab", &MEMORY, true).is_err());
    tree.cgroup("x.scope/penfold-0123456789ab/penfold-exec-1", ALL, "", true);
    assert!(tree.choose("x.scope/penfold-0123456789ab/penfold-exec-1", &MEMORY, true).is_err());
    // Inside of the leaf there may be a place.
    tree.cgroup("x.scope/penfold-0123456789ab", ALL, "", false);
    tree.cgroup("x.scope/penfold-0123456789ab/main", ALL, "", true);
    let found = tree.choose("x.scope/penfold-0123456789ab/main", &MEMORY, false).unwrap();
    assert_eq!(found.0, "/x.scope/penfold-0123456789ab");
}

/// spec: 17.4
#[test]
fn a_controller_of_cgroup_v1_is_named() {
    let own = b"9:name=systemd:/\n4:memory:/\n1:cpu,cpuacct:/\n0::/\n";
    let error = on_v2(own, &MEMORY).unwrap_err();
    assert_eq!(error.to_string(), "the controller `memory` belongs to cgroup v1 on this host");
    assert!(matches!(
        on_v2(own, &Limits { cpus: Some(Duration::from_secs(1)), ..Limits::default() }),
        Err(LimitError::OnV1 { controller: Controller::Cpu })
    ));
    assert!(on_v2(own, &Limits { pids: Some(1), ..Limits::default() }).is_ok());
}

/// spec: 17.3
#[test]
fn controllers_are_enabled_by_one_write_and_verified() {
    let tree = Tree::new();
    tree.cgroup("a", ALL, "", false);
    // The file of a fake keeps the text that was written, so the verification fails there.
    let error = enable_controllers(&tree.path("a"), &[Controller::Memory, Controller::Cpu]).unwrap_err();
    assert!(matches!(error, LimitError::Enable { controller: Controller::Memory, .. }), "{error:?}");
    assert_eq!(std::fs::read_to_string(tree.path("a/cgroup.subtree_control")).unwrap(), "+memory +cpu");
    enable_controllers(&tree.path("missing"), &[]).unwrap();
}
