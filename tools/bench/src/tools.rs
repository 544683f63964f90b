//! The measured programs.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_process::{Pid, ProcFs};
use tempfile::TempDir;

use crate::error::Error;

/// The programs, and a directory for temporary files.
///
/// The programs are copies. No build replaces them during a measurement, other users may execute them, and a process
/// that runs one was started here.
#[derive(Debug)]
pub(crate) struct Tools {
    dir: TempDir,
    /// The installed form of penfold.
    pub(crate) penfold: PathBuf,
    /// A directory in memory, as runtime directories usually are.
    volatile: TempDir,
    /// This program.
    pub(crate) bench: PathBuf,
}

impl Tools {
    /// Finds or builds penfold, and copies the binary.
    pub(crate) fn prepare() -> Result<Tools, Error> {
        let built = given().map_or_else(|| build(None), Ok)?;
        let dir = tempfile::Builder::new()
            .prefix("penfold-bench-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .map_err(|source| Error::io("cannot make a temporary directory", source))?;
        let own = std::env::current_exe().map_err(|source| Error::io("cannot find this program", source))?;
        let penfold = copy(&built, dir.path())?;
        let bench = copy(&own, dir.path())?;
        let volatile = tempfile::Builder::new()
            .prefix("penfold-bench-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in(memory().unwrap_or_else(|| dir.path()))
            .map_err(|source| Error::io("cannot make a directory for records", source))?;
        Ok(Tools { dir, penfold, volatile, bench })
    }

    /// A directory that is removed at the end.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A directory in memory for runtime directories; removed at the end.
    pub(crate) fn volatile(&self) -> &Path {
        self.volatile.path()
    }

    /// `penfold run` with these options and its own state root, so that it does not look at the records of others.
    pub(crate) fn run(&self, options: &[&str]) -> Command {
        let mut command = Command::new(&self.penfold);
        command.arg("--root").arg(self.volatile().join("root")).arg("run").args(options);
        command
    }

    /// Copies a program from `PATH` to the directory; `None` if it is not installed.
    pub(crate) fn borrow(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        find(name).map(|path| copy(&path, self.dir())).transpose()
    }
}

/// Returns a directory in memory. If `/run` is on the disk, as on some virtual machines, this is the shared memory.
fn memory() -> Option<&'static Path> {
    ["/run", "/dev/shm"]
        .into_iter()
        .map(Path::new)
        .find(|place| rustix::fs::statfs(*place).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC))
}

/// `TMPFS_MAGIC`, linux/magic.h.
const TMPFS_MAGIC: i64 = 0x0102_1994;

fn copy(program: &Path, dir: &Path) -> Result<PathBuf, Error> {
    let to = dir.join(program.file_name().unwrap_or_default());
    std::fs::copy(program, &to).map_err(Error::at("copy", program))?;
    Ok(to)
}

/// The binary from `PENFOLD_BIN`; without it, the benchmark builds one.
pub(crate) fn given() -> Option<PathBuf> {
    variable("PENFOLD_BIN").map(PathBuf::from)
}

/// Builds the binary as for an installation, and returns its path.
pub(crate) fn build(target_dir: Option<&Path>) -> Result<PathBuf, Error> {
    let mut cargo = Command::new(variable("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--package", "penfold", "--message-format", "json-render-diagnostics"]);
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).stderr(Stdio::inherit());
    if let Some(dir) = target_dir {
        cargo.arg("--target-dir").arg(dir);
    }
    let output = cargo.output().map_err(|source| Error::io("cannot run `cargo`", source))?;
    if !output.status.success() {
        return Err(Error::Failed {
            program: "cargo build".to_owned(),
            status: output.status,
            said: "see above".to_owned(),
        });
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| {
            let is_penfold = message.pointer("/target/name")? == "penfold";
            message.get("executable")?.as_str().filter(|_| is_penfold).map(PathBuf::from)
        });
    executable.ok_or_else(|| Error::odd("`cargo build` printed no path of the binary `penfold`"))
}

/// Finds a program in `PATH`, or in the directories for root's programs.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = variable("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|path| path.is_file())
}

#[expect(clippy::disallowed_methods, reason = "a binary reads its environment")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns every process that runs this program.
pub(crate) fn running(proc: &mut ProcFs, program: &Path) -> Result<Vec<Pid>, Error> {
    let mut pids = Vec::new();
    proc.processes(&mut pids).map_err(|source| Error::io("cannot list `/proc`", source))?;
    pids.retain(|pid| {
        let link = format!("/proc/{pid}/exe");
        std::fs::read_link(link).is_ok_and(|exe| exe.as_os_str() == program.as_os_str())
    });
    Ok(pids)
}

/// Returns the last line of a program's output, as a short reason.
pub(crate) fn last_words(stderr: &[u8]) -> String {
    let text = stderr.trim_ascii_end();
    let line = text.rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
    OsStr::from_bytes(line).to_string_lossy().chars().take(160).collect()
}
