//! Recognises the lack of a descriptor, which must not be taken for the absence of what could not be opened.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

/// Tells whether an error, or a cause of it, is the lack of a descriptor: then nothing is known of what could not be opened.
pub fn lacks_descriptors(error: &(dyn Error + 'static)) -> bool {
    let shared = error.downcast_ref::<Arc<io::Error>>().map(Arc::as_ref);
    let errno = shared.or(error.downcast_ref()).and_then(Errno::from_io_error);
    match errno.or(error.downcast_ref().copied()) {
        Some(errno) => matches!(errno, Errno::MFILE | Errno::NFILE),
        None => error.source().is_some_and(lacks_descriptors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot look")]
    struct Look(#[source] io::Error);

    #[test]
    fn the_lack_of_a_descriptor_is_found_below_other_errors() {
        let error = |errno: Errno| io::Error::from(errno);
        for errno in [Errno::MFILE, Errno::NFILE] {
            assert!(lacks_descriptors(&error(errno)) && lacks_descriptors(&errno));
            assert!(lacks_descriptors(&Arc::new(error(errno))));
            assert!(lacks_descriptors(&Look(error(errno))));
        }
        assert!(!lacks_descriptors(&Look(error(Errno::NOENT))));
    }
}
