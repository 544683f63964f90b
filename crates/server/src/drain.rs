//! The end of the server, which streams wait for.

use tokio::sync::watch;

/// The end of the server. Handlers of streams select on [`Drain::begun`] and end their stream as incomplete.
#[derive(Debug)]
pub struct Drain {
    begun: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain { begun: watch::Sender::new(false) }
    }
}

impl Drain {
    /// Begins the end: from now on [`Drain::begun`] is ready.
    pub fn begin(&self) {
        self.begun.send_replace(true);
    }

    /// Tells whether the end has begun.
    pub fn has_begun(&self) -> bool {
        *self.begun.borrow()
    }

    /// Waits until the end has begun.
    pub async fn begun(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.begun.subscribe().wait_for(|begun| *begun).await;
    }
}
