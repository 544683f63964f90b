//! The start of a program without the preparations of Rust's runtime.
//!
//! The runtime reads the list of the process's mappings and installs handlers that name the overflow of a stack: a tenth of
//! what `penfold run` costs. What else it does is done here.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};

/// Makes a function that gives the exit code the start of the program, which is `#![no_main]`.
///
/// The words of the command line are where they always are, in [`std::env::args_os`]: glibc, and no other C library, gives
/// them to the standard library before this. Standard output is not flushed at the end.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        // SAFETY: the name is the C library's for the one start of a program; the type is what it calls.
        #[unsafe(no_mangle)]
        extern "C" fn main(count: i32, words: *const *const u8) -> i32 {
            // SAFETY: this is called by the C library only.
            unsafe { $crate::entry::start($main, count, words) }
        }
    };
}

/// Does what the runtime would do, and calls `main`.
///
/// # Safety
/// `count` and `words` are what the C library gave to the start of the program.
pub unsafe fn start(main: fn() -> u8, count: i32, words: *const *const u8) -> i32 {
    // SAFETY: the caller says so.
    unsafe { crate::title::note_arguments(count, words) };
    open_standard();
    crate::signal::set_ignored(libc::SIGPIPE);
    main().into()
}

/// Opens what is closed of the three standard streams: the next file opened would be taken for one of them.
fn open_standard() {
    for number in 0..3 {
        // SAFETY: the descriptor is only asked about; a closed one is answered with EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::io::fcntl_getfd(fd) == Err(rustix::io::Errno::BADF)
            && let Ok(null) = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty())
        {
            std::mem::forget(null);
        }
    }
}
