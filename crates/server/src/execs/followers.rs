//! The open streams of execs. A kill wakes them, and waits until each has told the end.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// The time that a stream has for its last events; a client that does not read gets them later.
const PATIENCE: Duration = Duration::from_millis(500);

/// The exec that a stream follows: the id of its sandbox and its number.
pub type Followed = (String, u32);

/// The open streams of execs.
#[derive(Debug, Default)]
pub struct Followers(Mutex<HashMap<Followed, Vec<Follower>>>);

/// One open stream.
#[derive(Debug)]
pub struct Follower {
    /// Shut down to wake the thread that writes the stream.
    pub wake: UnixStream,
    /// The sender is dropped once the stream is sent, or its client is gone.
    pub open: watch::Receiver<()>,
}

impl Followers {
    /// Adds a stream.
    pub fn add(&self, exec: Followed, follower: Follower) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, followers| {
            followers.retain(|follower| follower.open.has_changed().is_ok());
            !followers.is_empty()
        });
        all.entry(exec).or_default().push(follower);
    }

    /// Wakes the streams of ended execs that `is_meant`, and waits until they are sent.
    pub async fn finish(&self, is_meant: impl Fn(&Followed) -> bool) {
        let mut open: Vec<Follower> = Vec::new();
        {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let meant: Vec<Followed> = all.keys().filter(|followed| is_meant(followed)).cloned().collect();
            open.extend(meant.iter().filter_map(|followed| all.remove(followed)).flatten());
        }
        for follower in &open {
            let _ = follower.wake.shutdown(Shutdown::Both);
        }
        let sent = async {
            for follower in &mut open {
                while follower.open.changed().await.is_ok() {}
            }
        };
        let _ = tokio::time::timeout(PATIENCE, sent).await;
    }
}
