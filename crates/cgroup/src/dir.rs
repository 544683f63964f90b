//! Opens directories and files of a cgroup2 file system, without following links.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, CWD, FsWord, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// `CGROUP2_SUPER_MAGIC`, `include/uapi/linux/magic.h`.
const CGROUP2_SUPER_MAGIC: FsWord = 0x6367_7270;

/// Kernel files report no size. They are read in few pieces: this is on the path of every run.
const MUCH: usize = 8 * 1024;
/// The buffer grows below this much room. Memory that was never touched costs as much as the read.
const LITTLE: usize = 1024;

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens an absolute path as a directory, without following symbolic links anywhere in it.
pub(crate) fn open_absolute(path: &Path) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat2(CWD, path, DIR_FLAGS, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Kernels before 5.6 lack openat2(2) and some seccomp filters refuse it: check the last name at least.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(path, DIR_FLAGS, Mode::empty()),
        other => other,
    }
}

/// Opens a directory of a leaf.
pub(crate) fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    unlocked(dir, name, || rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty()))
}

/// Opens a file or directory of a leaf. A member of the same user may have locked it with chmod(2), which is undone.
fn unlocked(
    dir: BorrowedFd<'_>,
    name: &CStr,
    open: impl Fn() -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    open().or_else(|errno| {
        if errno != Errno::ACCESS {
            return Err(errno);
        }
        // The directory must come first: nothing below a locked directory can be reached.
        let _ = rustix::fs::fchmod(dir, Mode::RWXU);
        let _ = rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty());
        open()
    })
}

/// Tells whether `dir` is on a cgroup2 file system.
pub(crate) fn is_cgroup2(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(is_cgroup2_type(rustix::fs::fstatfs(dir)?.f_type))
}

/// Tells whether `f_type` of statfs(2) means cgroup2.
pub(crate) fn is_cgroup2_type(f_type: FsWord) -> bool {
    f_type == CGROUP2_SUPER_MAGIC
}

/// Opens a file in `dir` for reading.
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a file in `dir` for writing.
pub(crate) fn open_for_writing(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Writes `text` to a control file in one piece, as the kernel requires.
pub(crate) fn write_control_file(dir: BorrowedFd<'_>, name: &CStr, text: &[u8]) -> Result<(), Errno> {
    write_to(unlocked(dir, name, || open_for_writing(dir, name))?, text)
}

/// Writes `text` to an open control file in one piece.
pub(crate) fn write_to(file: impl AsFd, text: &[u8]) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::write(&file, text)).map(|_| ())
}

/// Reads a short control file into `buffer`, which must have room for all that matters.
pub(crate) fn read_short<'b>(
    dir: BorrowedFd<'_>,
    name: &CStr,
    buffer: &'b mut [u8],
) -> Result<&'b [u8], Errno> {
    let file = unlocked(dir, name, || open_file(dir, name))?;
    let length = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *buffer))?;
    Ok(&buffer[..length])
}

/// Reads a file of any length.
pub(crate) fn read_all(dir: BorrowedFd<'_>, name: &CStr, text: &mut Vec<u8>) -> Result<(), Errno> {
    read_again(unlocked(dir, name, || open_file(dir, name))?, text)
}

/// Reads an open file of any length, from its start.
pub(crate) fn read_again(file: impl AsFd, text: &mut Vec<u8>) -> Result<(), Errno> {
    text.clear();
    loop {
        if text.capacity() - text.len() < LITTLE {
            text.reserve(MUCH);
        }
        let from = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if rustix::io::retry_on_intr(|| rustix::io::pread(&file, spare_capacity(text), from))? == 0 {
            return Ok(());
        }
    }
}

/// Reads a file of `/proc`.
pub(crate) fn read_proc(path: &CStr) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::new();
    read_again(file, &mut text)?;
    Ok(text)
}

/// Tells whether this cgroup has cgroups below it: the kernel counts them in the links of the directory.
pub(crate) fn has_cgroups(dir: impl AsFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstat(dir)?.st_nlink > 2)
}

/// Tells whether an error means that the cgroup was removed.
pub(crate) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NODEV)
}
