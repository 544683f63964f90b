//! Shared code of the tests on real processes.

use std::os::fd::OwnedFd;
use std::process::Child;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that the test or its tree started; killed when dropped.
pub struct Handle {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Handle {
    pub fn open(pid: i32) -> Handle {
        let pid = Pid::from_raw(pid).unwrap();
        Handle { pid, pidfd: pidfd_open(pid, PidfdFlags::empty()).unwrap() }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn name(&self) -> String {
        let name =
            std::fs::read_to_string(format!("/proc/{}/comm", self.pid.as_raw_nonzero())).unwrap_or_default();
        name.trim().to_owned()
    }

    pub fn end(&self) -> rustix::io::Result<()> {
        pidfd_send_signal(&self.pidfd, Signal::KILL)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.end();
        // A process that is still dying after its test keeps the output of the test open.
        let _ =
            poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&Timespec { tv_sec: 10, tv_nsec: 0 }));
    }
}

/// A child that is killed and reaped when dropped.
pub struct Started(pub Child);

impl Started {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
