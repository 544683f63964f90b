//! Closes descriptors in a forked process.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use penfold_sys::child::Exit;
use penfold_sys::{ForkSide, child, fork};

/// Returns the numbers of the open descriptors, without the one that lists them.
fn open_numbers() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut listed: Vec<i32> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    listed.retain(|fd| std::fs::exists(format!("/proc/self/fd/{fd}")).unwrap());
    listed.sort_unstable();
    listed
}

#[test]
fn only_kept_descriptors_and_standard_streams_stay_open() {
    let files: Vec<File> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
    let kept: Vec<BorrowedFd<'_>> = [6, 1, 2].map(|number: usize| files[number].as_fd()).to_vec();
    let mut expected = vec![0, 1, 2];
    expected.extend([1, 2, 6].map(|number: usize| files[number].as_raw_fd()));
    assert!(open_numbers().len() > expected.len());
    match fork().unwrap() {
        ForkSide::Child => {
            let closed = penfold_sys::descriptors::keep_only(&kept).is_ok();
            let files = std::mem::ManuallyDrop::new(files);
            let left = open_numbers();
            let is_right = closed && left == expected && files.len() == 8;
            penfold_sys::fork::exit_now(i32::from(!is_right));
        }
        ForkSide::Parent(pid) => {
            rustix::process::waitid(
                rustix::process::WaitId::Pid(pid),
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
            )
            .unwrap();
            assert_eq!(child::reap_child(pid).unwrap(), Some(Exit::Code(0)));
        }
    }
}
