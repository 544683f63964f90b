//! The turns of the guards of one process.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The thread whose turn it is, and the number of its guards.
static OWNER: Mutex<Option<(ThreadId, usize)>> = Mutex::new(None);
static IS_FREE: Condvar = Condvar::new();

/// Guards of different threads take turns. Only descent tells the processes of two tests apart, and under `cargo test` all
/// tests run in one process. Under nextest each test has a process of its own, and no guard waits.
#[derive(Debug)]
pub(crate) struct Turn(());

impl Turn {
    /// Waits until no other thread has a guard.
    pub(crate) fn take() -> Turn {
        let own = std::thread::current().id();
        let mut owner = IS_FREE
            .wait_while(owner(), |owner| owner.is_some_and(|(thread, _)| thread != own))
            .unwrap_or_else(PoisonError::into_inner);
        *owner = Some((own, owner.map_or(1, |(_, guards)| guards + 1)));
        Turn(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut owner = owner();
        *owner = owner.and_then(|(thread, guards)| (guards > 1).then(|| (thread, guards - 1)));
        IS_FREE.notify_all();
    }
}

fn owner() -> MutexGuard<'static, Option<(ThreadId, usize)>> {
    OWNER.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_has_several_guards_and_another_thread_waits_for_the_last() {
        let (first, second) = (Turn::take(), Turn::take());
        let (taken, is_taken) = channel();
        let other = std::thread::spawn(move || {
            let _turn = Turn::take();
            taken.send(()).unwrap();
        });
        drop(first);
        assert_eq!(is_taken.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        drop(second);
        is_taken.recv_timeout(Duration::from_secs(30)).unwrap();
        other.join().unwrap();
    }
}
