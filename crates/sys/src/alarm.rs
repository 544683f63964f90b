//! A timer that continues this process if somebody has stopped it.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Sends `SIGCONT` to this process when the timer expires, and again a second later: `timer_create(2)`.
///
/// A stopped process does not notice the timeout of poll(2). `SIGCONT` continues a process even if the signal is
/// blocked or ignored: signal(7). A blocked `SIGCONT` has no other effect. The second signal is for a process that is
/// stopped again after the first, before the process has acted. An interval timer would not do: it waits until the
/// first signal has been delivered. A fork does not inherit the timers.
#[derive(Debug)]
pub struct Alarm([libc::timer_t; 2]);

/// The delay between the two signals.
const AGAIN: Duration = Duration::from_secs(1);

impl Alarm {
    /// Creates a timer that is not armed.
    ///
    /// # Errors
    /// When the user has no room for more pending signals (`RLIMIT_SIGPENDING`).
    pub fn create() -> io::Result<Alarm> {
        let first = create()?;
        match create() {
            Ok(second) => Ok(Alarm([first, second])),
            Err(error) => {
                delete(first);
                Err(error)
            }
        }
    }

    /// Arms the timer to expire after this time, and replaces an earlier setting.
    pub fn set(&self, after: Duration) {
        let [first, second] = self.0;
        // Zero would disarm the timer.
        set(first, after.max(Duration::from_nanos(1)));
        set(second, after.saturating_add(AGAIN));
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.into_iter().for_each(delete);
    }
}

fn create() -> io::Result<libc::timer_t> {
    // SAFETY: a zeroed sigevent is valid: it is plain data.
    let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = libc::SIGCONT;
    let mut timer = std::ptr::null_mut();
    // SAFETY: both pointers are to live values of the right type, and the call does not keep the pointers.
    let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
    if made == 0 { Ok(timer) } else { Err(io::Error::last_os_error()) }
}

fn set(timer: libc::timer_t, after: Duration) {
    let setting = libc::itimerspec {
        it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: libc::timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        },
    };
    // SAFETY: the timer lives as long as the value that created it. The pointer is to a live value, and the call does
    // not keep the pointer.
    unsafe { libc::timer_settime(timer, 0, &raw const setting, std::ptr::null_mut()) };
}

fn delete(timer: libc::timer_t) {
    // SAFETY: the value that created the timer is being dropped, so the timer is not used any more.
    unsafe { libc::timer_delete(timer) };
}
