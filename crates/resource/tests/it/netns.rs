//! A network namespace that something holds is not gone.

use std::os::fd::OwnedFd;
use std::time::Duration;

use penfold_resource::{ResourceError, ResourcePresence};

use crate::support::{Holder, Sandbox, as_root, attempt, has, holders, run};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(10);

/// Releases a namespace that is held, twice; then frees it and sees it gone.
fn held(sandbox: &Sandbox, holder: Holder) {
    for _ in 0..2 {
        let error = sandbox.release_one(0, SHORT).unwrap_err();
        holder.is_named_in(holders(&error));
        assert!(!attempt(&["ip", "netns", "list"]).0.contains(&sandbox.netns()));
        let ResourcePresence::Ours { held_by } = sandbox.planned[0].probe(&sandbox.owner).unwrap() else {
            panic!("a namespace that is held is not gone")
        };
        holder.is_named_in(&held_by);
    }
    drop(holder);
    sandbox.release_one(0, LONG).unwrap();
    assert_eq!(sandbox.planned[0].probe(&sandbox.owner).unwrap(), ResourcePresence::Absent);
}

fn made() -> Sandbox {
    let sandbox = Sandbox::plan(r#"{"network":{}}"#);
    sandbox.create();
    sandbox
}

#[test]
fn a_process_in_it() {
    as_root(|| {
        if has("ip") {
            let sandbox = made();
            let holder = Holder::shell(&format!(
                "exec ip netns exec {} bash -c 'echo ready; read line'",
                sandbox.netns()
            ));
            held(&sandbox, holder);
        }
    });
}

#[test]
fn an_open_descriptor() {
    as_root(|| {
        let sandbox = made();
        let holder = Holder::shell(&format!("exec 7</run/netns/{}", sandbox.netns()));
        held(&sandbox, holder);
    });
}

#[test]
fn a_socket_of_a_process_outside() {
    as_root(|| {
        if !has("python3") {
            return;
        }
        let sandbox = made();
        let script = format!(
            "exec python3 -c 'import ctypes,os,socket,sys
home=os.open(\"/proc/self/ns/net\",0)
libc=ctypes.CDLL(None)
there=os.open(\"/run/netns/{}\",0)
assert libc.setns(there,0)==0
os.close(there)
kept=socket.socket()
assert libc.setns(home,0)==0
print(\"ready\",flush=True)
sys.stdin.readline()'",
            sandbox.netns()
        );
        held(&sandbox, Holder::shell(&script));
    });
}

#[test]
fn a_bind_mount_elsewhere() {
    as_root(|| {
        if !has("mount") {
            return;
        }
        let sandbox = made();
        let file = sandbox.path("kept");
        std::fs::write(&file, "").unwrap();
        let file = file.to_str().unwrap().to_owned();
        run(&["mount", "--bind", &format!("/run/netns/{}", sandbox.netns()), &file]);
        let error = sandbox.release_one(0, SHORT).unwrap_err();
        assert!(holders(&error).iter().any(|holder| holder.contains(&file)), "{error:?}");
        run(&["umount", &file]);
        sandbox.release_one(0, LONG).unwrap();
    });
}

#[test]
fn the_end_of_a_holder_wakes_the_release() {
    as_root(|| {
        let sandbox = made();
        let namespace: OwnedFd =
            std::fs::File::open(format!("/run/netns/{}", sandbox.netns())).unwrap().into();
        assert!(matches!(sandbox.release_one(0, SHORT), Err(ResourceError::Held { .. })));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sandbox.release_one(0, LONG));
            drop(namespace);
            waiting.join().unwrap().unwrap();
        });
    });
}

#[test]
fn a_foreign_namespace_of_the_same_name_stays() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{}}"#);
        let name = sandbox.netns();
        run(&["ip", "netns", "add", &name]);
        let checked = sandbox.planned[0].check();
        let released = sandbox.release_one(0, SHORT);
        let stayed = run(&["ip", "netns", "list"]).contains(&name);
        run(&["ip", "netns", "delete", &name]);
        assert!(matches!(checked, Err(ResourceError::Taken { .. })), "{checked:?}");
        assert!(matches!(released, Err(ResourceError::Foreign { .. })), "{released:?}");
        assert!(stayed);
    });
}

#[test]
fn links_with_one_end_moved_away_go() {
    as_root(|| {
        if !has("ip") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{"address":"10.213.9.2/30"}}"#);
        sandbox.create();
        let (link, name) = (sandbox.owner.link_name(), sandbox.netns());
        let other = format!("{name}-other");
        run(&["ip", "netns", "add", &other]);
        run(&["ip", "link", "set", &link, "netns", &other]);
        let there = run(&["ip", "-n", &other, "link", "show", &link]);
        let inside = run(&["ip", "-n", &name, "link", "show", "eth0"]);
        let errors = sandbox.release(LONG);
        let (_, left) = attempt(&["ip", "-n", &other, "link", "show", &link]);
        run(&["ip", "netns", "delete", &other]);
        assert!(there.contains(&link) && inside.contains("eth0"));
        assert!(errors.is_empty(), "{errors:?}");
        assert!(!left);
    });
}

#[test]
fn a_tap_that_is_open_goes() {
    as_root(|| {
        if !has("python3") || !has("ip") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"network":{"tap":{},"namespace":false}}"#);
        sandbox.create();
        let link = sandbox.owner.link_name();
        let _holder = Holder::shell(&format!(
            "exec python3 -c 'import fcntl,os,struct,sys
tun=os.open(\"/dev/net/tun\",os.O_RDWR)
fcntl.ioctl(tun,0x400454ca,struct.pack(\"16sH22x\",b\"{link}\",0x1002))
print(\"ready\",flush=True)
sys.stdin.readline()'"
        ));
        assert!(!run(&["ip", "link", "show", &link]).contains("NO-CARRIER"));
        sandbox.release_all();
        assert!(!attempt(&["ip", "link", "show", &link]).1);
    });
}
