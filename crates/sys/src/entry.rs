//! Starts a program without the preparations of Rust's runtime.
//!
//! The runtime reads the process's list of mappings and installs handlers that report stack overflows. Both take a
//! tenth of the time of `penfold run`. This module does the rest of the runtime's work.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};

/// Makes the function `$main` the start of a `#![no_main]` program; the function returns the exit code.
///
/// [`std::env::args_os`] works as usual with glibc, which gives the arguments to the standard library before this.
/// Other C libraries do not. Standard output is not flushed at the end.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        // SAFETY: the C library reserves this name for the start of a program, and calls it with this signature.
        #[unsafe(no_mangle)]
        extern "C" fn main(count: i32, words: *const *const u8) -> i32 {
            // SAFETY: only the C library calls this function.
            unsafe { $crate::entry::start($main, count, words) }
        }
    };
}

/// Does the runtime's work, and calls `main`.
///
/// # Safety
/// `count` and `words` are the values that the C library gave to the start of the program.
pub unsafe fn start(main: fn() -> u8, count: i32, words: *const *const u8) -> i32 {
    // SAFETY: the caller keeps the same promise.
    unsafe { crate::title::note_arguments(count, words) };
    open_standard();
    crate::signal::set_ignored(libc::SIGPIPE);
    main().into()
}

/// Opens those of the three standard streams that are closed. Otherwise the next file opened would get their number. For programs
/// that are executed they are closed again.
fn open_standard() {
    for number in 0..3 {
        // SAFETY: the call only queries the descriptor; for a closed descriptor the kernel answers EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(fd) == Err(rustix::io::Errno::BADF)
            && let Ok(null) = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        {
            std::mem::forget(null);
        }
    }
}
