//! Each kind: made, seen by other programs, released, and gone for them, too.

use std::os::unix::fs::PermissionsExt as _;

use penfold_resource::{ResourceError, ResourcePresence};

use crate::support::{Sandbox, as_root, attempt, has, has_mount, run};

#[test]
fn a_workspace_is_private_and_goes() {
    let sandbox = Sandbox::plan(r#"{"workspace":{"path":"DIR/w"}}"#);
    sandbox.create();
    let mode = std::fs::metadata(sandbox.path("w")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    std::fs::write(sandbox.path("w/file"), "x").unwrap();
    sandbox.release_all();
    assert_eq!(std::fs::read_dir(sandbox.dir.path()).unwrap().count(), 0);
}

#[test]
fn a_kept_workspace_stays_with_its_files() {
    let sandbox = Sandbox::plan(r#"{"workspace":{"path":"DIR/w","keep":true}}"#);
    for planned in &sandbox.planned {
        planned.check().unwrap();
        planned.create(&sandbox.owner).unwrap();
    }
    std::fs::write(sandbox.path("w/file"), "x").unwrap();
    sandbox.release_all();
    assert_eq!(std::fs::read(sandbox.path("w/file")).unwrap(), b"x");
}

#[test]
fn a_socket_directory_has_a_short_path_and_goes() {
    let sandbox = Sandbox::plan(r#"{"sockets":{}}"#);
    sandbox.create();
    let path = sandbox.path("short").join(&sandbox.owner.id);
    let _socket = std::os::unix::net::UnixListener::bind(path.join("api.sock")).unwrap();
    sandbox.release_all();
    assert!(!path.try_exists().unwrap());
}

#[test]
fn a_netns_is_seen_by_ip_and_goes() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{}}"#);
        sandbox.create();
        let name = sandbox.netns();
        assert!(run(&["ip", "netns", "list"]).contains(&name));
        assert!(run(&["ip", "-n", &name, "link", "show", "lo"]).contains("LOOPBACK,UP"));
        assert!(sandbox.planned[0].netns_path().unwrap().ends_with(&name));
        sandbox.release_all();
        assert!(!attempt(&["ip", "netns", "list"]).0.contains(&name));
    });
}

#[test]
fn a_link_carries_packets_and_goes() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let mut sandbox = Sandbox::new();
        // A network of the test's own, so that tests may run at the same time.
        let third = std::process::id() % 200 + 20;
        let fourth = std::process::id() / 200 % 60 * 4;
        let request = format!(
            r#"{{"network":{{"address":"10.{third}.213.{}/30","gateway":"10.{third}.213.{}"}}}}"#,
            fourth + 2,
            fourth + 1
        );
        sandbox.planned = sandbox.try_plan(&request).unwrap();
        sandbox.create();
        let (name, link) = (sandbox.netns(), sandbox.owner.link_name());
        let shown = run(&["ip", "-d", "link", "show", &link]);
        assert!(shown.contains(&format!("alias penfold {}", sandbox.owner.id)), "{shown}");
        let routes = run(&["ip", "-n", &name, "route"]);
        assert!(routes.contains(&format!("default via 10.{third}.213.{} dev eth0", fourth + 1)), "{routes}");
        let listener = std::net::TcpListener::bind(format!("10.{third}.213.{}:0", fourth + 1)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = format!("exec 3<>/dev/tcp/10.{third}.213.{}/{port}", fourth + 1);
        run(&["ip", "netns", "exec", &name, "bash", "-c", &script]);
        drop(listener);
        sandbox.release_all();
        assert!(!attempt(&["ip", "link", "show", &link]).1);
    });
}

#[test]
fn a_taken_address_is_refused_before_anything_is_made() {
    as_root(|| {
        let sandbox = Sandbox::plan(r#"{"network":{"address":"127.0.0.2/8","gateway":"127.0.0.1"}}"#);
        let error = sandbox.planned[1].check().unwrap_err();
        assert!(matches!(error, ResourceError::Taken { .. }), "{error:?}");
    });
}

#[test]
fn a_tap_in_the_namespace_persists_and_goes() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{"tap":{"user":65123}}}"#);
        sandbox.create();
        let shown = run(&["ip", "-n", &sandbox.netns(), "-d", "link", "show", "tap0"]);
        assert!(shown.contains("persist on user 65123"), "{shown}");
        sandbox.release_all();
    });
}

#[test]
fn a_tap_on_the_host_persists_and_goes() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{"tap":{},"namespace":false}}"#);
        sandbox.create();
        let link = sandbox.owner.link_name();
        let shown = run(&["ip", "-d", "link", "show", &link]);
        assert!(shown.contains("persist on") && shown.contains(&sandbox.owner.id), "{shown}");
        sandbox.release_all();
        assert!(!attempt(&["ip", "link", "show", &link]).1);
    });
}

#[test]
fn a_foreign_link_of_the_same_name_stays() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{"tap":{},"namespace":false}}"#);
        let link = sandbox.owner.link_name();
        run(&["ip", "link", "add", &link, "type", "veth", "peer", "name", &link.replace("pf-", "px-")]);
        let checked = sandbox.planned[0].check();
        let created = sandbox.planned[0].create(&sandbox.owner);
        let presence = sandbox.planned[0].probe(&sandbox.owner).unwrap();
        let released = sandbox.release(std::time::Duration::from_millis(50));
        let stayed = attempt(&["ip", "link", "show", &link]).1;
        run(&["ip", "link", "delete", &link]);
        assert!(matches!(checked, Err(ResourceError::Taken { .. })), "{checked:?}");
        assert!(created.is_err());
        assert!(matches!(presence, ResourcePresence::Foreign { .. }), "{presence:?}");
        assert!(matches!(released[..], [ResourceError::Foreign { .. }]), "{released:?}");
        assert!(stayed);
    });
}

#[test]
fn mounts_are_made_in_order_and_go() {
    as_root(|| {
        let mut sandbox = Sandbox::new();
        for name in ["lower", "source"] {
            std::fs::create_dir(sandbox.path(name)).unwrap();
            std::fs::write(sandbox.path(name).join(name), "x").unwrap();
        }
        let request = r#"{"workspace":{"path":"DIR/w"},"mounts":[
            {"type":"overlay","lower":["DIR/lower"],"target":"DIR/w"},
            {"type":"tmpfs","target":"DIR/t","size":"1M"},
            {"type":"bind","source":"DIR/source","target":"DIR/t/inner","read_only":true}]}"#;
        sandbox.planned = sandbox.try_plan(request).unwrap();
        sandbox.create();
        std::fs::write(sandbox.path("w/changed"), "x").unwrap();
        assert!(sandbox.path("w/lower").try_exists().unwrap());
        assert!(sandbox.path("t/inner/source").try_exists().unwrap());
        let refused = std::fs::write(sandbox.path("t/inner/new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        for point in ["w", "t", "t/inner"] {
            assert!(has_mount(&sandbox.path(point)), "{point}");
        }
        sandbox.release_all();
        let mut left: Vec<_> =
            std::fs::read_dir(sandbox.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["lower", "source"]);
        assert!(!sandbox.path("lower/changed").try_exists().unwrap());
    });
}
