//! Clones a child that waits until its parent releases it, then executes another program.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Gid, Pid, Uid};

use crate::signal::SignalSet;

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

/// Everything that the child needs, prepared before the clone: the child allocates nothing.
#[derive(Debug)]
pub struct Program {
    candidates: Vec<CString>,
    /// The strings to which the pointers point.
    _strings: (Vec<CString>, Vec<CString>),
    argument_pointers: Vec<*const c_char>,
    shell_pointers: Vec<*const c_char>,
    environment_pointers: Vec<*const c_char>,
    network: Option<CString>,
    directory: Option<CString>,
    user: Option<Credentials>,
    mask: SignalSet,
    ignored: Vec<i32>,
    defaults: Vec<i32>,
    own_stdio: Option<OwnStdio>,
    numbered: Option<(OwnedFd, RawFd)>,
}

/// The standard descriptors of a program that runs in a session of its own.
#[derive(Debug)]
pub struct OwnStdio {
    /// The standard input; also the controlling terminal, if `terminal` is set.
    pub input: OwnedFd,
    /// The standard output.
    pub output: OwnedFd,
    /// The standard error.
    pub error: OwnedFd,
    /// Whether the input is a terminal that becomes the controlling terminal.
    pub terminal: bool,
}

impl Program {
    /// Describes a program with its arguments (the first is its name) and its whole environment (`KEY=value`).
    ///
    /// The child executes the first of `candidates` that can be executed.
    pub fn new(candidates: Vec<CString>, arguments: Vec<CString>, environment: Vec<CString>) -> Program {
        let pointers = |strings: &[CString]| {
            strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        let mut shell_pointers = vec![SHELL.as_ptr(), SHELL.as_ptr()];
        shell_pointers.extend(arguments.iter().skip(1).map(|s| s.as_ptr()));
        shell_pointers.push(std::ptr::null());
        Program {
            argument_pointers: pointers(&arguments),
            environment_pointers: pointers(&environment),
            shell_pointers,
            candidates,
            _strings: (arguments, environment),
            network: None,
            directory: None,
            user: None,
            mask: SignalSet::empty(),
            ignored: Vec::new(),
            defaults: Vec::new(),
            own_stdio: None,
            numbered: None,
        }
    }

    /// Gives the program a session and standard descriptors of its own.
    pub fn own_session(&mut self, stdio: OwnStdio) -> &mut Program {
        self.own_stdio = Some(stdio);
        self
    }

    /// Gives the program a descriptor with this number, which is above 2.
    pub fn descriptor(&mut self, fd: OwnedFd, number: RawFd) -> &mut Program {
        self.numbered = Some((fd, number));
        self
    }

    /// Returns the descriptors that are meant for the program.
    pub fn given(&self) -> Vec<BorrowedFd<'_>> {
        let stdio = self.own_stdio.iter().flat_map(|stdio| [&stdio.input, &stdio.output, &stdio.error]);
        stdio.chain(self.numbered.iter().map(|(fd, _)| fd)).map(AsFd::as_fd).collect()
    }

    /// Tells whether the program gets a session of its own.
    pub fn has_own_stdio(&self) -> bool {
        self.own_stdio.is_some()
    }

    /// Closes the descriptors that were meant for the program: the program has its own copies.
    pub fn close_given(&mut self) {
        self.own_stdio = None;
        self.numbered = None;
    }

    /// Sets the network namespace that the program enters: a file of nsfs.
    pub fn network(&mut self, namespace: CString) -> &mut Program {
        self.network = Some(namespace);
        self
    }

    /// Sets the directory in which the program starts.
    pub fn directory(&mut self, directory: CString) -> &mut Program {
        self.directory = Some(directory);
        self
    }

    /// Sets the user as whom the program runs.
    pub fn user(&mut self, user: Credentials) -> &mut Program {
        self.user = Some(user);
        self
    }

    /// Sets the program's signal mask, the signals that it ignores and those with the default action.
    pub fn signals(&mut self, mask: SignalSet, ignored: Vec<i32>, defaults: Vec<i32>) -> &mut Program {
        self.mask = mask;
        self.ignored = ignored;
        self.defaults = defaults;
        self
    }

    /// Executes the program; returns only if that fails.
    ///
    /// The method makes only async-signal-safe calls and allocates nothing, so that it may run in a clone.
    pub fn exec(&mut self) -> Failure {
        if let Some(stdio) = &self.own_stdio
            && let Err(errno) = stdio.install()
        {
            return Failure { step: Step::Descriptors, errno };
        }
        if let Some((fd, number)) = &self.numbered
            && let Err(errno) = install_numbered(fd, *number)
        {
            return Failure { step: Step::Descriptors, errno };
        }
        for &signal in &self.ignored {
            crate::signal::set_ignored(signal);
        }
        for &signal in &self.defaults {
            crate::signal::set_default(signal);
        }
        if let Some(namespace) = &self.network
            && let Err(errno) = enter_network(namespace)
        {
            return Failure { step: Step::Network, errno };
        }
        if let Some(directory) = &self.directory {
            // SAFETY: `directory` is a C string.
            if unsafe { libc::chdir(directory.as_ptr()) } == -1 {
                return Failure { step: Step::Directory, errno: errno() };
            }
        }
        // Last, since the directory may be closed to the user, as for `penfold run --user`.
        if let Some(Err(errno)) = self.user.as_ref().map(Credentials::become_user) {
            return Failure { step: Step::User, errno: errno.raw_os_error() };
        }
        if let Err(error) = crate::signal::set_mask(&self.mask) {
            return Failure { step: Step::Signals, errno: error.raw_os_error().unwrap_or(0) };
        }
        let mut worst = libc::ENOENT;
        for candidate in &self.candidates {
            // SAFETY: the arguments are a C string and two null-terminated arrays of C strings, all owned by `self`.
            unsafe {
                libc::execve(
                    candidate.as_ptr(),
                    self.argument_pointers.as_ptr(),
                    self.environment_pointers.as_ptr(),
                )
            };
            match errno() {
                libc::ENOEXEC => {
                    // A script without `#!`: like execvp(3), run it with the shell.
                    self.shell_pointers[1] = candidate.as_ptr();
                    // SAFETY: as above.
                    unsafe {
                        libc::execve(
                            SHELL.as_ptr(),
                            self.shell_pointers.as_ptr(),
                            self.environment_pointers.as_ptr(),
                        )
                    };
                    return Failure { step: Step::Exec, errno: errno() };
                }
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                libc::EACCES => worst = libc::EACCES,
                other => return Failure { step: Step::Exec, errno: other },
            }
        }
        Failure { step: Step::Exec, errno: worst }
    }
}

/// The ids of a user.
#[derive(Debug, Clone)]
pub struct Credentials {
    user: Uid,
    group: Gid,
    groups: Vec<Gid>,
}

impl Credentials {
    /// Describes a user with these groups, `group` included. `None` if an id is -1, which the kernel takes for "no change".
    pub fn new(user: u32, group: u32, groups: &[u32]) -> Option<Credentials> {
        if [user, group].iter().chain(groups).any(|&id| id == u32::MAX) {
            return None;
        }
        let groups = groups.iter().copied().map(Gid::from_raw).collect();
        Some(Credentials { user: Uid::from_raw(user), group: Gid::from_raw(group), groups })
    }

    /// Makes the calling thread this user, for good, with async-signal-safe calls only. The groups come first: only root may
    /// change them.
    ///
    /// # Errors
    /// Those of setgroups(2), setresgid(2) and setresuid(2).
    pub fn become_user(&self) -> rustix::io::Result<()> {
        rustix::thread::set_thread_groups(&self.groups)?;
        rustix::thread::set_thread_res_gid(self.group, self.group, self.group)?;
        rustix::thread::set_thread_res_uid(self.user, self.user, self.user)
    }
}

/// Enters a network namespace, with async-signal-safe calls only.
fn enter_network(namespace: &CStr) -> Result<(), i32> {
    // SAFETY: `namespace` is a C string.
    let fd = unsafe { libc::open(namespace.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd == -1 {
        return Err(errno());
    }
    // SAFETY: the call takes no pointer. The descriptor is closed by the exec.
    if unsafe { libc::setns(fd, libc::CLONE_NEWNET) } == -1 { Err(errno()) } else { Ok(()) }
}

/// Installs a descriptor under its number, without the close-on-exec flag, with async-signal-safe calls only.
fn install_numbered(fd: &OwnedFd, number: RawFd) -> Result<(), i32> {
    let result = if fd.as_raw_fd() == number {
        // SAFETY: the call takes no pointer; the descriptor is open.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) }
    } else {
        // SAFETY: the call takes no pointer. The replaced descriptor is a copy of the parent's, which this process does
        // not use: `launch` keeps the link away from this number.
        unsafe { libc::dup2(fd.as_raw_fd(), number) }
    };
    if result == -1 { Err(errno()) } else { Ok(()) }
}

impl OwnStdio {
    /// Installs the session, the terminal and the descriptors, with async-signal-safe calls only.
    fn install(&self) -> Result<(), i32> {
        // Fails only for a group leader, which a fresh clone is not.
        let _ = rustix::process::setsid();
        // SAFETY: the call takes no pointer; the descriptor is open.
        if self.terminal && unsafe { libc::ioctl(self.input.as_raw_fd(), libc::TIOCSCTTY, 0) } == -1 {
            return Err(errno());
        }
        for (number, fd) in [&self.input, &self.output, &self.error].into_iter().enumerate() {
            let number = i32::try_from(number).unwrap_or(0);
            // SAFETY: the call takes no pointer. The replaced descriptor is a copy of the parent's, which this process
            // does not use.
            if unsafe { libc::dup2(fd.as_raw_fd(), number) } == -1 {
                return Err(errno());
            }
        }
        Ok(())
    }
}

const SHELL: &CStr = c"/bin/sh";

/// The step at which a child failed to execute its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The change to its working directory.
    Directory,
    /// The entry into its network namespace.
    Network,
    /// The change to its user.
    User,
    /// The setting of its signal mask.
    Signals,
    /// The installation of its standard descriptors and terminal.
    Descriptors,
    /// The exec of the program.
    Exec,
}

/// The reason why a child did not execute its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The step that failed.
    pub step: Step,
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
pub enum Released {
    /// The child runs its program.
    Running,
    /// The child could not execute its program, and has exited.
    Failed(Failure),
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
/// Those of clone3(2) and socketpair(2); no child exists then.
pub fn launch(
    program: &mut Program,
    leaf: Option<BorrowedFd<'_>>,
    joined: Option<BorrowedFd<'_>>,
) -> io::Result<Launch> {
    let (link, child_link) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // The program's descriptor would replace the link, over which the child reports a failed exec.
    let child_link = match program.numbered {
        Some((_, number)) if child_link.as_raw_fd() == number => {
            rustix::io::fcntl_dupfd_cloexec(&child_link, number.saturating_add(1))?
        }
        _ => child_link,
    };
    let own = link.as_fd().as_raw_fd();
    let theirs = child_link.as_fd().as_raw_fd();
    let joined = joined.map(|fd| fd.as_raw_fd());
    // SAFETY: the child calls only `child`, which is async-signal-safe and never returns.
    match unsafe { clone3(leaf, Namespaces::default())? } {
        Some((pid, pidfd)) => Ok(Launch { pid, pidfd, link }),
        None => child(program, own, theirs, joined),
    }
}

/// Spawns a command that writes itself into an open `cgroup.procs` before its first instruction.
///
/// # Errors
/// Those of the spawn, and the error of the write: a command that did not join is not run.
pub fn spawn_joined(
    command: &mut std::process::Command,
    processes_file: OwnedFd,
) -> io::Result<std::process::Child> {
    use std::os::unix::process::CommandExt;
    let join = move || rustix::io::write(&processes_file, b"0").map(drop).map_err(io::Error::from);
    // SAFETY: the closure makes one system call and allocates nothing; an errno becomes an io::Error without an
    // allocation.
    unsafe { command.pre_exec(join) };
    command.spawn()
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
pub fn clone_process(namespaces: Namespaces, leaf: Option<BorrowedFd<'_>>) -> io::Result<crate::Forked> {
    if !crate::fork::single_threaded()? {
        return Err(io::Error::from_raw_os_error(libc::EDEADLK));
    }
    // SAFETY: the process has one thread, so the child inherits no lock that another thread holds.
    Ok(match unsafe { clone3(leaf, namespaces)? } {
        Some((pid, _)) => crate::Forked::Parent(pid),
        None => crate::Forked::Child,
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
    // If the first message was not sent, both processes would wait for each other: skip the wait.
    // SAFETY: the buffer is one writable byte. Signals are blocked, so the call is not interrupted.
    if said == 2 && unsafe { libc::recv(theirs, go.as_mut_ptr().cast(), 1, 0) } == 1 {
        let failure = program.exec();
        let step = match failure.step {
            Step::Directory => 0,
            Step::Signals => 1,
            Step::Exec => 2,
            Step::Descriptors => 3,
            Step::Network => 4,
            Step::User => 5,
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
    pub fn outcome(&self) -> io::Result<Option<Released>> {
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
            return Ok(Some(Released::Running));
        }
        let (step, errno) = answer.split_at(4);
        let step = match step.first() {
            Some(0) => Step::Directory,
            Some(1) => Step::Signals,
            Some(3) => Step::Descriptors,
            Some(4) => Step::Network,
            Some(5) => Step::User,
            _ => Step::Exec,
        };
        let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
        Ok(Some(Released::Failed(Failure { step, errno })))
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
