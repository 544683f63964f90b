//! Waits for changes on the runtime, without a thread.

use std::io;

use tokio::net::unix::pipe;

/// Waits until an inotify descriptor has an event.
///
/// # Errors
/// Those of read(2).
pub async fn changed(ready: &mut pipe::Receiver) -> io::Result<()> {
    loop {
        ready.readable().await?;
        // No event fits: EINVAL means that there is one. Without one, the runtime waits for the next.
        match ready.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => return Ok(()),
        }
    }
}
