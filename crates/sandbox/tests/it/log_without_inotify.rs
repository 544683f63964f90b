//! A log is followed where the kernel gives nothing to be told by. Alone in its file: it lowers a limit of its process.

use crate::log_support::{Place, latencies};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_follower_without_inotify_keeps_up_by_looking() {
    let usual = getrlimit(Resource::Nofile);
    let behind = latencies(&Place::new(), 60, || {
        // The lowest free number is the limit: what is open stays open, and nothing more can be.
        let free = std::fs::File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&free);
        let limit = Rlimit { current: u64::try_from(number).ok(), ..usual };
        setrlimit(Resource::Nofile, limit).unwrap();
        drop(free);
        assert!(rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).is_err());
    });
    setrlimit(Resource::Nofile, usual).unwrap();
    assert!(behind[behind.len() / 2] < 60_000, "{behind:?}");
}
