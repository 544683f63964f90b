//! The start of a program in a jail that runs already: in its namespaces, and with no more rights than its command.
//!
//! A process cannot move itself into a pid namespace: only its later children are born there. So the parent clones a child that
//! enters all namespaces and then clones the program's process as its own sibling (`CLONE_PARENT`), which is a child of the parent,
//! too. The parent itself stays outside: in a jail it could be killed by the jail's processes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_dumpable_behavior,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Launch, Namespaces, Program, child, clone3, errno};
use crate::namespace::owner_of;

/// The time that the entry may take. It waits for nothing, but a frozen cgroup delays it.
const ENTRY: Duration = Duration::from_secs(5);
/// The time that a killed child may take to die.
const DEATH: Duration = Duration::from_secs(1);
/// The length of `struct sock_filter` of linux/filter.h.
const INSTRUCTION: usize = 8;

/// The way into a jail, open.
#[derive(Debug)]
pub struct JailEntry {
    /// Namespaces that `owner` does not own, such as a network namespace of penfold.
    foreign: Vec<OwnedFd>,
    /// The user namespace that owns the others, if it is not that of this process.
    owner: Option<OwnedFd>,
    /// The pid namespace.
    processes: OwnedFd,
    /// The mount namespace and the others.
    spaces: Vec<OwnedFd>,
    /// The user namespace of the jail's processes, if it is not `owner`.
    user: Option<OwnedFd>,
    /// The directory `/proc` of the jail.
    proc: OwnedFd,
    /// Device and inode of the root directory.
    root: (u64, u64),
    /// The working directory of the command.
    home: OwnedFd,
    /// The capabilities in the bounding set.
    bounding: u64,
    /// The filter of system calls.
    filter: Vec<u8>,
}

/// The identity of a namespace.
fn identity(space: &File) -> io::Result<(u64, u64)> {
    let meta = space.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

impl JailEntry {
    /// Opens the jail whose first process has this pid. The caller makes sure, before and after, that the pid is that process.
    ///
    /// `bounding` is the set of capabilities of a process of the jail, `filter` its filter of system calls, a number of
    /// `struct sock_filter`; empty for none.
    ///
    /// # Errors
    /// When the process is in no jail, or the caller may not enter it.
    pub fn open(pid: Pid, bounding: u64, filter: Vec<u8>) -> io::Result<JailEntry> {
        let process = format!("/proc/{}", pid.as_raw_pid());
        let theirs = |kind: &str| File::open(format!("{process}/ns/{kind}"));
        let own = |kind: &str| identity(&File::open(format!("/proc/self/ns/{kind}"))?);
        let different = |kind: &str| -> io::Result<Option<OwnedFd>> {
            let space = theirs(kind)?;
            Ok((identity(&space)? != own(kind)?).then(|| space.into()))
        };
        let not_in_jail = || io::Error::other("its process is in no namespace of its own");
        let mounts = theirs("mnt")?;
        let (own_user, owner, user) = (own("user")?, File::from(owner_of(mounts.as_fd())?), theirs("user")?);
        let (owner_user, inner_user) = (identity(&owner)?, identity(&user)?);
        // bubblewrap makes the namespaces in a user namespace, and leaves that one for another. The first gives an ordinary user
        // the right to enter the others, the second takes this right away.
        let owner = (owner_user != own_user).then(|| owner.into());
        let user = (inner_user != owner_user).then(|| user.into());
        let processes = different("pid")?.ok_or_else(not_in_jail)?;
        let mut spaces = vec![different("mnt")?.ok_or_else(not_in_jail)?];
        let mut foreign = Vec::new();
        for kind in ["ipc", "uts", "cgroup", "net"] {
            let Some(space) = different(kind)? else { continue };
            let is_own = identity(&File::from(owner_of(space.as_fd())?))? == owner_user;
            if is_own { &mut spaces } else { &mut foreign }.push(space);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let home = rustix::fs::openat(CWD, format!("{process}/cwd"), flags, Mode::empty())?;
        let proc = rustix::fs::openat(CWD, format!("{process}/root/proc"), flags, Mode::empty())?;
        let root = std::fs::metadata(format!("{process}/root/"))?;
        if !filter.len().is_multiple_of(INSTRUCTION) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let root = (root.dev(), root.ino());
        Ok(JailEntry { foreign, owner, processes, spaces, user, proc, root, home, bounding, filter })
    }

    /// Lets later children of this process be born in the pid namespace of the jail. This process, and its children, keep their
    /// files and their rights on them.
    ///
    /// # Errors
    /// Those of setns(2).
    pub fn enter_pid_namespace(&mut self) -> io::Result<()> {
        let processes = self.processes.as_fd();
        match rustix::thread::move_into_link_name_space(processes, None) {
            // An ordinary user has the right in the user namespace that owns the others. Root has it here, and needs it for others, too.
            Err(Errno::PERM) => {}
            entered => return Ok(entered?),
        }
        if let Some(owner) = self.owner.take() {
            rustix::thread::move_into_link_name_space(owner.as_fd(), None)?;
        }
        Ok(rustix::thread::move_into_link_name_space(processes, None)?)
    }

    /// Returns the directory `/proc` of the jail, which shows the jail's processes by their numbers there.
    pub fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// Enters the namespaces, with async-signal-safe calls only. Later children of this process are in the pid namespace.
    fn enter(&self) -> rustix::io::Result<()> {
        // The processes of the jail must not trace a process that has more rights than they have.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        // The right to enter those of others ends with the entry into `owner`.
        let others = [&self.processes].into_iter().chain(&self.spaces).chain(&self.user);
        for space in self.foreign.iter().chain(&self.owner).chain(others) {
            rustix::thread::move_into_link_name_space(space.as_fd(), None)?;
        }
        let root = rustix::fs::stat(c"/")?;
        if (root.st_dev, root.st_ino) == self.root { Ok(()) } else { Err(Errno::XDEV) }
    }

    /// Enters the working directory and gives up what the command of the jail does not have, with async-signal-safe calls only.
    pub(super) fn confine(&self) -> Result<(), i32> {
        rustix::process::fchdir(&self.home).map_err(Errno::raw_os_error)?;
        self.drop_rights().map_err(Errno::raw_os_error)?;
        self.load_filter()
    }

    fn drop_rights(&self) -> rustix::io::Result<()> {
        close_at_exec();
        rustix::thread::set_no_new_privs(true)?;
        for number in 0..u64::BITS {
            let bit = 1_u64 << number;
            let capability = CapabilitySet::from_bits_retain(bit);
            if self.bounding & bit != 0 {
                continue;
            }
            match rustix::thread::capability_is_in_bounding_set(capability) {
                Ok(true) => rustix::thread::remove_capability_from_bounding_set(capability)?,
                Ok(false) => {}
                // The kernel knows no more capabilities.
                Err(Errno::INVAL) => break,
                Err(errno) => return Err(errno),
            }
        }
        rustix::thread::clear_ambient_capability_set()?;
        let none = CapabilitySet::empty();
        rustix::thread::set_capabilities(
            None,
            CapabilitySets { effective: none, permitted: none, inheritable: none },
        )
    }

    fn load_filter(&self) -> Result<(), i32> {
        if self.filter.is_empty() {
            return Ok(());
        }
        let Ok(len) = u16::try_from(self.filter.len() / INSTRUCTION) else { return Err(libc::EINVAL) };
        // The kernel copies the instructions byte by byte, so they need no alignment.
        let program = libc::sock_fprog { len, filter: self.filter.as_ptr().cast_mut().cast() };
        // SAFETY: `program` points to `len` instructions, which the kernel reads only.
        let result = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_u32, &raw const program)
        };
        if result == 0 { Ok(()) } else { Err(errno()) }
    }
}

/// Marks all descriptors above the standard ones to be closed by the exec. Each of penfold's is so already; Linux before 5.11 does
/// not have the call.
fn close_at_exec() {
    const FLAG: u32 = 4;
    // SAFETY: takes no pointers; with this flag no descriptor is closed before an exec.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, FLAG) };
}

/// As [`super::launch_program`], for a program with a jail.
pub(super) fn launch_in_jail(
    program: &mut Program,
    leaf: Option<BorrowedFd<'_>>,
    joined: Option<BorrowedFd<'_>>,
) -> io::Result<Launch> {
    let (link, child_link) = super::socket_pair(program)?;
    let (born, birth) = pipe_with(PipeFlags::CLOEXEC)?;
    let fds = JailDescriptors {
        own: link.as_raw_fd(),
        theirs: child_link.as_raw_fd(),
        birth: birth.as_raw_fd(),
        joined: joined.map(|fd| fd.as_raw_fd()),
    };
    // SAFETY: the child calls only `enter_and_clone`, which is async-signal-safe and never returns.
    let entering = unsafe { clone3(leaf, Namespaces::default())? };
    let Some((pid, pidfd)) = entering else { enter_and_clone(program, fds) };
    drop((birth, child_link));
    let entered = read_birth(&born);
    if entered.is_err() {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
    // Its exit may be delayed only if its cgroup is frozen; then the kill above or below wakes it.
    if !has_ended(&pidfd, ENTRY) {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        has_ended(&pidfd, DEATH);
    }
    let _ = crate::child::reap_child(pid);
    // An unreaped child of this process keeps its pid.
    let pid = entered?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(Launch { pid, pidfd, link })
}

/// Reads the pid of the program's process, or the error number that prevents it.
fn read_birth(born: &OwnedFd) -> io::Result<Pid> {
    if !is_readable(born, ENTRY) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut words = [0_u8; 8];
    if rustix::io::retry_on_intr(|| rustix::io::read(born, &mut words))? != words.len() {
        return Err(io::Error::other("the process that enters the jail died"));
    }
    let (pid, errno) = words.split_at(4);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, i32::from_ne_bytes);
    Pid::from_raw(number(pid)).ok_or_else(|| io::Error::from_raw_os_error(number(errno)))
}

fn is_readable(fd: &impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).ok();
    let wait = || poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref());
    rustix::io::retry_on_intr(wait).is_ok_and(|ready| ready > 0)
}

fn has_ended(pidfd: &OwnedFd, timeout: Duration) -> bool {
    is_readable(pidfd, timeout)
}

/// The descriptors that the child needs, besides those in the program.
#[derive(Clone, Copy)]
struct JailDescriptors {
    /// The parent's end of the link.
    own: RawFd,
    /// The child's end of the link.
    theirs: RawFd,
    /// The pipe for the pid.
    birth: RawFd,
    /// The `cgroup.procs` to join.
    joined: Option<RawFd>,
}

/// Runs in the first child: enters the jail, clones the program's process, reports its pid and exits.
fn enter_and_clone(program: &mut Program, fds: JailDescriptors) -> ! {
    let answer = match enter_and_become_two(program, fds.joined) {
        Ok(Some(pid)) => [pid, 0],
        Ok(None) => {
            // SAFETY: this copy of the descriptor is never used or dropped: the child execs or exits.
            unsafe { libc::close(fds.birth) };
            child(program, fds.own, fds.theirs, None)
        }
        Err(errno) => [0, errno],
    };
    // SAFETY: the buffer is `answer`, eight readable bytes.
    unsafe { libc::write(fds.birth, answer.as_ptr().cast(), 8) };
    // SAFETY: ends the process without running any code of the copied program.
    unsafe { libc::_exit(0) }
}

/// Returns the pid of the new process in the first child, and `None` in the new process.
fn enter_and_become_two(program: &Program, joined: Option<RawFd>) -> Result<Option<i32>, i32> {
    if let Some(joined) = joined {
        // Before the entry, since the write is judged by the rights of the writer.
        // SAFETY: the buffer is one readable byte.
        if unsafe { libc::write(joined, c"0".as_ptr().cast(), 1) } != 1 {
            return Err(errno());
        }
    }
    if let Some(jail) = program.jail() {
        jail.enter().map_err(Errno::raw_os_error)?;
    }
    let flags = libc::c_ulong::try_from(libc::CLONE_PARENT).unwrap_or(0);
    let none: libc::c_ulong = 0;
    // The signal at its exit is that of the first child: SIGCHLD.
    // SAFETY: without CLONE_VM the new process has its own copy of the stack and returns here like a fork; it calls only `child`.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    match i32::try_from(pid) {
        Ok(0) => Ok(None),
        Ok(pid) if pid > 0 => Ok(Some(pid)),
        _ => Err(errno()),
    }
}
