//! A timer that lets this process go on where somebody has stopped it.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Sends `SIGCONT` to this process when its time has come, and once more a second later: `timer_create(2)`.
///
/// A stopped process sees no timer of poll(2), but `SIGCONT` continues it even where it is blocked or ignored: signal(7). A
/// process that blocks it is not woken by it otherwise. The second is for who is stopped after the first, before it has
/// acted; a timer with an interval would wait until the first was taken. A copy of the process has no such timers.
#[derive(Debug)]
pub struct Alarm([libc::timer_t; 2]);

/// How much later the second comes.
const AGAIN: Duration = Duration::from_secs(1);

impl Alarm {
    /// Makes one that is not set.
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

    /// Sets it to this time from now in the place of what it was set to.
    pub fn set(&self, after: Duration) {
        let [first, second] = self.0;
        // Zero would take it back.
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
    // SAFETY: a sigevent of zeroes is valid: it is plain data.
    let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = libc::SIGCONT;
    let mut timer = std::ptr::null_mut();
    // SAFETY: both pointers are to live values of the right kind, which the call does not keep.
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
    // SAFETY: the timer lives as long as the value that made it; the pointer is to a live value that the call does not keep.
    unsafe { libc::timer_settime(timer, 0, &raw const setting, std::ptr::null_mut()) };
}

fn delete(timer: libc::timer_t) {
    // SAFETY: the timer was made by the value that drops it, and is not used any more.
    unsafe { libc::timer_delete(timer) };
}
