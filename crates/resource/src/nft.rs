//! Tables of nftables, by its program `nft`.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{ResourceError, failed_step};
use crate::netlink::{DUMP, NetlinkAnswer, NetlinkMessage, NetlinkSocket, text_of};

/// Where the program is, whatever the `PATH`.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

const PATIENCE: Duration = Duration::from_secs(10);

/// Tells whether the table exists.
///
/// # Errors
/// When `nft` is missing, fails, or hangs.
pub(crate) fn table_exists(family: &str, name: &str) -> Result<bool, ResourceError> {
    let line = format!("table {family} {name}");
    Ok(run(&["list", "tables"])?.lines().any(|found| found.trim() == line))
}

/// Returns the tables of this network namespace, `FAMILY NAME`; none where they cannot be read.
///
/// A question about nftables makes the kernel load the module. So none is asked while the module is not loaded and could be.
pub fn nft_tables() -> Vec<String> {
    /// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_GETTABLE`, `NFTA_TABLE_NAME` of `linux/netfilter`.
    const GET_TABLE: u16 = 10 << 8 | 1;
    const TABLE_NAME: u16 = 1;
    /// The length of `struct nfgenmsg`.
    const HEADER: usize = 4;
    let is_loaded = std::fs::symlink_metadata("/sys/module/nf_tables").is_ok();
    if !is_loaded && is_loadable() {
        return Vec::new();
    }
    let message =
        NetlinkMessage { kind: GET_TABLE, flags: DUMP, header: vec![0; HEADER], attributes: Vec::new() };
    let answers = NetlinkSocket::open_netfilter().and_then(|socket| socket.ask(&message)).unwrap_or_default();
    let table = |answer: &NetlinkAnswer| {
        let family = match answer.first()? {
            1 => "inet",
            2 => "ip",
            3 => "arp",
            5 => "netdev",
            7 => "bridge",
            10 => "ip6",
            _ => "other",
        };
        Some(format!("{family} {}", text_of(answer, HEADER, TABLE_NAME)?))
    };
    answers.iter().filter_map(table).collect()
}

/// Tells whether nftables is a module that the kernel can load.
fn is_loadable() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let modules = std::fs::read_to_string(Path::new("/lib/modules").join(release).join("modules.dep"));
    modules.is_ok_and(|text| text.contains("/nf_tables.ko"))
}

/// Deletes the table.
pub(crate) fn delete_table(family: &str, name: &str) -> Result<(), ResourceError> {
    run(&["delete", "table", family, name]).map(drop)
}

fn run(words: &[&str]) -> Result<String, ResourceError> {
    let program = DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join("nft"))
        .find(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())
        .ok_or(ResourceError::NoProgram { program: "nft" })?;
    let command = format!("nft {}", words.join(" "));
    let attempt = || format!("run `{command}`");
    let output = memory_file().map_err(failed_step(attempt))?;
    let copies =
        output.try_clone().and_then(|one| Ok((one, output.try_clone()?))).map_err(failed_step(attempt))?;
    let mut child = Command::new(program)
        .args(words)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(copies.0)
        .stderr(copies.1)
        .spawn()
        .map_err(failed_step(attempt))?;
    let in_time = has_ended_in_time(&child);
    if !in_time {
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed_step(attempt))?;
    let message = read(output).map_err(failed_step(attempt))?;
    match (status.success(), in_time) {
        (true, _) => Ok(message),
        (false, true) => Err(ResourceError::Program { command, message: message.trim().to_owned() }),
        (false, false) => Err(ResourceError::Program { command, message: "no answer in time".to_owned() }),
    }
}

/// Output in a file blocks nobody, as a full pipe does.
fn memory_file() -> std::io::Result<File> {
    Ok(rustix::fs::memfd_create("nft", MemfdFlags::CLOEXEC)?.into())
}

fn read(mut file: File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn has_ended_in_time(child: &Child) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return false };
    let time = Timespec::try_from(PATIENCE).ok();
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    poll(&mut fds, time.as_ref()).is_ok_and(|ready| ready > 0)
}
