//! The process that holds a frozen file system.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use penfold_sys::signal::set_ignored;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;

/// Mounts a fresh ext4 image at `DIRECTORY/mnt` with a file `file`, freezes it and prints `frozen`. After the line
/// `thaw` or the end of standard input, thaws the file system and removes everything.
pub(crate) fn keep(directory: &Path) -> io::Result<()> {
    // Who ends a test politely ends its process group. Nothing else could thaw the file system.
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        set_ignored(signal.as_raw());
    }
    let image = directory.join("image");
    let point = directory.join("mnt");
    let result = set_up(&image, &point).and_then(|()| {
        writeln!(io::stdout(), "frozen")?;
        // The line and the end of input mean the same.
        drop(io::stdin().read(&mut [0; 16]));
        run("fsfreeze", &["-u".as_ref(), &point])
    });
    // mount(8) attached the loop device; the kernel removes it with the last user of the file system.
    let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
    drop(fs::remove_dir(&point));
    drop(fs::remove_file(&image));
    result
}

fn set_up(image: &Path, point: &Path) -> io::Result<()> {
    fs::create_dir(point)?;
    fs::File::create(image)?.set_len(16 << 20)?;
    run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image])?;
    run("mount", &["-o".as_ref(), "loop".as_ref(), image, point])?;
    fs::write(point.join("file"), "x")?;
    run("fsfreeze", &["-f".as_ref(), point])
}

fn run(program: &str, arguments: &[&Path]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("`{program}`: {said}")))
}
