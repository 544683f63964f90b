//! Clones a child that waits until its parent releases it, then executes another program.

mod ipc;
mod jail;
mod program;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::Pid;

pub use self::ipc::IpcEntry;
pub use self::jail::JailEntry;
pub use self::program::{Credentials, OwnStdio, Program};

/// clone3's flags as 64-bit values: `libc::CLONE_INTO_CGROUP` overflows its `c_int` and reads 0.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const CLONE_PIDFD: u64 = 0x1000;

/// The namespaces into which [`clone_process`] puts the child.
#[derive(Debug, Clone, Copy, Default)]
pub struct Namespaces {
    /// A pid namespace, with the child as its pid 1, and a mount namespace for its /proc.
    pub pid: bool,
    /// A user namespace, which lets an ordinary user create the others.
    pub user: bool,
}

/// The step at which a child failed to execute its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchStep {
    /// The change to its working directory.
    Directory,
    /// The entry into its network namespace.
    Network,
    /// The entry into its IPC namespace.
    Ipc,
    /// The change to its user.
    User,
    /// The loss of the rights that a process of its jail does not have.
    Jail,
    /// The setting of its signal mask.
    Signals,
    /// The installation of its standard descriptors and terminal.
    Descriptors,
    /// The exec of the program.
    Exec,
}

/// The reason why a child did not execute its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchFailure {
    /// The step that failed.
    pub step: LaunchStep,
    /// The error number of the step.
    pub errno: i32,
}

/// A child between its clone and its exec, which waits for [`Launch::release`].
///
/// Dropping this value, or the death of this process, ends the child before the first instruction of its program.
#[derive(Debug)]
pub struct Launch {
    pid: Pid,
    pidfd: OwnedFd,
    link: OwnedFd,
}

/// The outcome of a released child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseResult {
    /// The child runs its program.
    Running,
    /// The child could not execute its program, and has exited.
    Failed(LaunchFailure),
}

/// Clones a child that executes `program` after its release.
///
/// `leaf` is the directory of a cgroup2 leaf into which the child is cloned. On Linux 6.14 to 7.2 and stable branches,
/// `CLONE_INTO_CGROUP` kills the child at birth if the leaf, or the caller's own cgroup, was ever killed. The child's
/// link then reaches EOF before [`Launch::ready`] sees its first message.
///
/// `joined` is an open `cgroup.procs` to which the child writes itself, for kernels or hosts where the clone into the
/// leaf fails.
///
/// # Errors
/// Those of clone3(2) and socketpair(2), and those of the entry into the jail of the program; no child runs its program then.
pub fn launch_program(
    program: &mut Program,
    leaf: Option<BorrowedFd<'_>>,
    joined: Option<BorrowedFd<'_>>,
) -> io::Result<Launch> {
    if program.jail().is_some() {
        return jail::launch_in_jail(program, leaf, joined);
    }
    let (link, child_link) = socket_pair(program)?;
    let own = link.as_fd().as_raw_fd();
    let theirs = child_link.as_fd().as_raw_fd();
    let joined = joined.map(|fd| fd.as_raw_fd());
    // SAFETY: the child calls only `child`, which is async-signal-safe and never returns.
    match unsafe { clone3(leaf, Namespaces::default())? } {
        Some((pid, pidfd)) => Ok(Launch { pid, pidfd, link }),
        None => child(program, own, theirs, joined),
    }
}

/// Makes the link between this process and a child.
fn socket_pair(program: &Program) -> io::Result<(OwnedFd, OwnedFd)> {
    let (link, child_link) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // The program's descriptor would replace the link, over which the child reports a failed exec.
    let child_link = match program.numbered_at() {
        Some(number) if child_link.as_raw_fd() == number => {
            rustix::io::fcntl_dupfd_cloexec(&child_link, number.saturating_add(1))?
        }
        _ => child_link,
    };
    Ok((link, child_link))
}

/// Spawns a command that writes itself into an open `cgroup.procs` before its first instruction.
///
/// The command can be spawned again, here with another file or without one: nothing of this call is left in it.
///
/// # Errors
/// Those of the spawn, and the error of the write: a command that did not join is not run.
pub fn spawn_joined(
    command: &mut std::process::Command,
    processes_file: OwnedFd,
) -> io::Result<std::process::Child> {
    use std::os::unix::process::CommandExt;
    // The command keeps the closure for each later spawn.
    let file = Arc::new(AtomicI32::new(processes_file.as_raw_fd()));
    let of_child = Arc::clone(&file);
    let join = move || {
        let raw = of_child.load(Ordering::Relaxed);
        if raw < 0 {
            return Ok(());
        }
        // SAFETY: the number is that of `processes_file` until this spawn has ended, and -1 from then on.
        let file = unsafe { BorrowedFd::borrow_raw(raw) };
        rustix::io::write(file, b"0").map(drop).map_err(io::Error::from)
    };
    // SAFETY: the closure makes one system call and allocates nothing; an errno becomes an io::Error without an
    // allocation.
    unsafe { command.pre_exec(join) };
    let spawned = command.spawn();
    file.store(-1, Ordering::Relaxed);
    drop(processes_file);
    spawned
}

/// Spawns a command that is a subreaper before its first instruction: orphans among its descendants become its children as long as
/// it lives.
///
/// # Errors
/// Those of the spawn and of prctl(2).
pub fn spawn_subreaper(command: &mut std::process::Command) -> io::Result<std::process::Child> {
    use std::os::unix::process::CommandExt;
    // The kernel reads the pid as "yes"; any will do.
    let adopt = || rustix::process::set_child_subreaper(Some(Pid::INIT)).map_err(io::Error::from);
    // SAFETY: the closure makes one system call and allocates nothing; an errno becomes an io::Error without an
    // allocation.
    unsafe { command.pre_exec(adopt) };
    command.spawn()
}

/// Clones this process into new namespaces; otherwise like `fork`.
///
/// # Errors
/// `EDEADLK` with more than one thread; `EPERM`, `ENOSPC`, `EUSERS` where the host refuses the namespaces.
pub fn clone_process(namespaces: Namespaces, leaf: Option<BorrowedFd<'_>>) -> io::Result<crate::ForkSide> {
    if !crate::fork::single_threaded()? {
        return Err(io::Error::from_raw_os_error(libc::EDEADLK));
    }
    // SAFETY: the process has one thread, so the child inherits no lock that another thread holds.
    Ok(match unsafe { clone3(leaf, namespaces)? } {
        Some((pid, _)) => crate::ForkSide::Parent(pid),
        None => crate::ForkSide::Child,
    })
}

/// `clone3(2)` without shared memory: a fork into a cgroup or namespaces. The parent gets the pid and a pidfd.
///
/// # Safety
/// In a process with other threads the child may only make async-signal-safe calls.
unsafe fn clone3(leaf: Option<BorrowedFd<'_>>, namespaces: Namespaces) -> io::Result<Option<(Pid, OwnedFd)>> {
    /// `struct clone_args` of linux/sched.h, 88 bytes since Linux 5.7.
    #[repr(C)]
    #[derive(Default)]
    struct Arguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    let mut pidfd: RawFd = -1;
    let place = u64::try_from((&raw mut pidfd).addr()).unwrap_or(0);
    let mut arguments = Arguments {
        flags: CLONE_PIDFD,
        pidfd: place,
        exit_signal: wide(libc::SIGCHLD),
        ..Arguments::default()
    };
    if let Some(leaf) = leaf {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = wide(leaf.as_raw_fd());
    }
    if namespaces.pid {
        arguments.flags |= wide(libc::CLONE_NEWPID) | wide(libc::CLONE_NEWNS);
    }
    if namespaces.user {
        arguments.flags |= wide(libc::CLONE_NEWUSER);
    }
    // SAFETY: `arguments` is a valid clone_args of the size given, whose pidfd points to a live i32. Without CLONE_VM
    // the child has its own copy of the stack and returns here like a fork. The caller promises what the child does
    // then.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<Arguments>()) };
    match i32::try_from(result) {
        Ok(0) => Ok(None),
        Ok(pid) if pid > 0 => {
            // SAFETY: the kernel has just made this descriptor for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Pid::from_raw(pid).map(|pid| (pid, pidfd)))
        }
        // Container seccomp filters refuse clone3 with ENOSYS or EPERM; a plain fork needs no clone3.
        _ if matches!(errno(), libc::ENOSYS | libc::EPERM) && arguments.flags == CLONE_PIDFD => {
            // Without a pidfd the child would be of no use, and no process could end it: check that pidfds work first.
            drop(rustix::process::pidfd_open(
                rustix::process::getpid(),
                rustix::process::PidfdFlags::empty(),
            )?);
            // SAFETY: as above.
            let pid = match unsafe { libc::fork() } {
                -1 => return Err(io::Error::last_os_error()),
                0 => return Ok(None),
                pid => Pid::from_raw(pid).ok_or_else(io::Error::last_os_error)?,
            };
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            Ok(Some((pid, pidfd)))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

fn wide(value: i32) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Runs in the child between clone and exec.
fn child(program: &mut Program, own: RawFd, theirs: RawFd, joined: Option<RawFd>) -> ! {
    // The parent's end must have one holder only, or the child could not see the parent's death.
    // SAFETY: this copy of the descriptor is never used or dropped: the child execs or exits.
    unsafe { libc::close(own) };
    let mut word = *b"r\0";
    if let Some(joined) = joined {
        // SAFETY: the buffer is one readable byte.
        if unsafe { libc::write(joined, c"0".as_ptr().cast(), 1) } != 1 {
            word[1] = 1;
        }
    }
    // SAFETY: the buffer is two readable bytes.
    let said = unsafe { libc::send(theirs, word.as_ptr().cast(), 2, libc::MSG_NOSIGNAL) };
    let mut go = [0_u8; 1];
    // SAFETY: this copy of the descriptor is open until exec.
    crate::schedule::await_briefly(unsafe { BorrowedFd::borrow_raw(theirs) });
    // If the first message was not sent, both processes would wait for each other: skip the wait.
    // SAFETY: the buffer is one writable byte. Signals are blocked, so the call is not interrupted.
    if said == 2 && unsafe { libc::recv(theirs, go.as_mut_ptr().cast(), 1, 0) } == 1 {
        let failure = program.exec();
        let step = match failure.step {
            LaunchStep::Directory => 0,
            LaunchStep::Signals => 1,
            LaunchStep::Exec => 2,
            LaunchStep::Descriptors => 3,
            LaunchStep::Network => 4,
            LaunchStep::User => 5,
            LaunchStep::Jail => 6,
            LaunchStep::Ipc => 7,
        };
        let answer = [step, failure.errno];
        // SAFETY: the buffer is `answer`, eight readable bytes.
        unsafe { libc::send(theirs, answer.as_ptr().cast(), 8, libc::MSG_NOSIGNAL) };
    }
    // End by a signal: a process that reaps the child without the answer must not take our exit code for the program's.
    // SAFETY: takes no argument.
    let own = unsafe { libc::getpid() };
    // SAFETY: takes no pointer; this process signals itself.
    unsafe { libc::kill(own, libc::SIGKILL) };
    // SAFETY: ends the process without running any code of the copied program.
    unsafe { libc::_exit(127) }
}

impl Launch {
    /// Returns the pid of the child.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the child's pidfd, for signals: unlike the pid, it never means another process.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Waits until the child is ready to exec; false if the child died at birth or could not join its leaf.
    ///
    /// # Errors
    /// Those of recv(2). The wait is short: the child only writes one or two messages. A caller with other work should
    /// do that work first.
    pub fn ready(&self) -> io::Result<bool> {
        crate::schedule::await_briefly(self.link());
        let mut word = [0_u8; 2];
        let (_, length) = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.link, &mut word, rustix::net::RecvFlags::empty())
        })?;
        Ok(length == 2 && word == *b"r\0")
    }

    /// Tells whether the child is ready to exec, without a wait; `None` as long as it has not said so: it may be stopped or
    /// frozen.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn is_ready(&self) -> io::Result<Option<bool>> {
        let mut word = [0_u8; 2];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.link, &mut word, rustix::net::RecvFlags::DONTWAIT)
        });
        match received {
            Ok((_, length)) => Ok(Some(length == 2 && word == *b"r\0")),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the child execute its program; [`Launch::link`] becomes readable after the exec, or after its failure.
    ///
    /// # Errors
    /// Those of send(2), except for a child that is already gone: [`Launch::outcome`] reports that.
    pub fn release(&self) -> io::Result<()> {
        match rustix::net::send(&self.link, b"g", rustix::net::SendFlags::NOSIGNAL) {
            Ok(_) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the descriptor to poll for the outcome.
    pub fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Returns the outcome of the released child, or `None` before its exec.
    ///
    /// EOF on the link means that the exec closed the link, or that the child died first: the exit status tells which.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn outcome(&self) -> io::Result<Option<ReleaseResult>> {
        let mut answer = [0_u8; 8];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.link, &mut answer, rustix::net::RecvFlags::DONTWAIT)
        });
        let length = match received {
            Ok((_, length)) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            return Ok(Some(ReleaseResult::Running));
        }
        let (step, errno) = answer.split_at(4);
        let step = match step.first() {
            Some(0) => LaunchStep::Directory,
            Some(1) => LaunchStep::Signals,
            Some(3) => LaunchStep::Descriptors,
            Some(4) => LaunchStep::Network,
            Some(5) => LaunchStep::User,
            Some(6) => LaunchStep::Jail,
            Some(7) => LaunchStep::Ipc,
            _ => LaunchStep::Exec,
        };
        let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
        Ok(Some(ReleaseResult::Failed(LaunchFailure { step, errno })))
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
