//! A real VM below a wrapper chain, with a tap, a disk in an overlay, and a socket: whatever ends the sandbox, all is gone.
//!
//! `scripts/vm-kernel` makes the kernel and its initramfs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use penfold_harness::Trial;

use super::endings::Ending;
use super::{Removed, assert_all_there, assert_none_there, can_make, flags};
use crate::support::{DEADLINE, Process, Sandbox, TestEnv, entries, has_program, skip, wait_until};

const ENDINGS: [(&str, Ending); 6] = [
    ("stop", Ending::Stop),
    ("kill", Ending::Kill),
    ("rm", Ending::Rm),
    ("supervisor_dies", Ending::SupervisorDies),
    ("both_die", Ending::BothDie),
    ("record_is_lost", Ending::RecordIsLost),
];

/// The shells stay above the VM.
const CHAIN: &str = r#"unshare -m --propagation slave -- bash -c 'truncate -s 16M ../layers/disk
    ip netns exec "$PENFOLD_NETNS" qemu-system-x86_64 -M pc -accel tcg -m 128 -nographic -no-reboot \
        -kernel "$KERNEL/vmlinuz" -initrd "$KERNEL/initramfs" -append "console=ttyS0 panic=-1 quiet" \
        -netdev "tap,id=net,ifname=$PENFOLD_TAP,script=no,downscript=no" -device e1000,netdev=net \
        -drive file=../layers/disk,format=raw -qmp "unix:$PENFOLD_SOCKETS/qmp,server=on,wait=off" >../console 2>&1; exit'; exit"#;

/// A test for each ending. Each boots a VM, which takes a processor for some seconds.
pub fn generated() -> Vec<Trial> {
    // spec: 18.1, 18.6
    let trial = |(name, ending): (&str, Ending)| {
        Trial::test(format!("resources::vm::{name}"), move || {
            if can_make() && has_program(&["qemu-system-x86_64", "--version"]) {
                match kernel() {
                    Some(kernel) => takes_the_vm(ending, &kernel),
                    None => skip("`scripts/vm-kernel` has made no kernel"),
                }
            }
            Ok(())
        })
    };
    ENDINGS.into_iter().map(trial).collect()
}

/// The directory of kernel and initramfs, beside the directories of the build.
fn kernel() -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap();
    let found = program.ancestors().map(|dir| dir.join("vm-kernel"));
    found.into_iter().find(|dir| dir.join("initramfs").is_file())
}

fn takes_the_vm(ending: Ending, kernel: &std::path::Path) {
    let env = TestEnv::new();
    let mut words = flags(&env);
    words.extend(["--netns-outside", "--grace", "10s", "--", "env"].map(str::to_owned));
    words.push(format!("KERNEL={}", kernel.display()));
    words.extend(["sh", "-c", CHAIN].map(str::to_owned));
    let sandbox = env.detach(&words);
    let removed = Removed(&env, &sandbox);
    let console = env.path("work/console");
    let up = || fs::read(&console).is_ok_and(|said| String::from_utf8_lossy(&said).contains("penfold-vm up"));
    let booted = penfold_testkit::until(DEADLINE, up);
    assert!(booted, "{}", String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()));
    let members = sandbox.members(&env);
    let named = |name: &str| members.iter().find(|one| one.command_line().starts_with(name));
    assert!(named("sh ").is_some() && named("bash ").is_some(), "the chain is there");
    assert_vm_has_all(&env, &sandbox, named("qemu-system-x86_64 ").unwrap());
    assert_all_there(&env, &sandbox.id);
    ending.apply(&env, &sandbox);
    sandbox.assert_gone(&members);
    assert_none_there(&env, &sandbox.id);
    assert_eq!(entries(&env.path("work/layers")), Vec::<PathBuf>::new());
    assert_eq!(entries(&env.path("work/lower")).len(), 1, "the disk was written through the overlay");
    drop(removed);
    env.assert_nothing_left();
}

/// Panics unless the VM runs in the namespace, and holds its tap, disk and socket.
fn assert_vm_has_all(env: &TestEnv, sandbox: &Sandbox, vm: &Process) {
    let proc = PathBuf::from(format!("/proc/{}", vm.pid()));
    let namespace = format!("/run/netns/penfold-{}", sandbox.id);
    assert_eq!(fs::metadata(proc.join("ns/net")).unwrap().ino(), fs::metadata(namespace).unwrap().ino());
    let open: Vec<PathBuf> =
        entries(&proc.join("fd")).iter().filter_map(|fd| fs::read_link(fd).ok()).collect();
    assert!(open.contains(&env.path("work/layers/disk")), "{open:?}");
    let about: Vec<String> =
        entries(&proc.join("fdinfo")).iter().filter_map(|fd| fs::read_to_string(fd).ok()).collect();
    assert!(about.iter().any(|text| text.contains("iff:\ttap0")), "no tap in {about:?}");
    let socket = env.root().join("sockets").join(&sandbox.id).join("qmp");
    wait_until("the socket is there", || socket.try_exists().unwrap());
    let mut greeting = String::new();
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    BufReader::new(stream).read_line(&mut greeting).unwrap();
    assert!(greeting.contains("\"QMP\""), "{greeting}");
}
