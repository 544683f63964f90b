//! A program to execute, prepared before the clone.

use std::ffi::{CStr, CString, c_char};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::process::{Gid, Uid};

use super::ipc::IpcEntry;
use super::jail::JailEntry;
use super::{LaunchFailure, LaunchStep, errno};
use crate::signal::SignalSet;

/// Everything that the child needs, prepared before the clone: the child allocates nothing.
#[derive(Debug)]
pub struct Program {
    candidates: Vec<CString>,
    /// The strings to which the pointers point.
    _strings: (Vec<CString>, Vec<CString>),
    argument_pointers: Pointers,
    shell_pointers: Pointers,
    environment_pointers: Pointers,
    network: Option<CString>,
    directory: Option<CString>,
    user: Option<Credentials>,
    ipc: Option<IpcEntry>,
    jail: Option<JailEntry>,
    mask: SignalSet,
    ignored: Vec<i32>,
    defaults: Vec<i32>,
    own_stdio: Option<OwnStdio>,
    numbered: Option<(OwnedFd, RawFd)>,
}

/// Pointers to the bytes of the strings of a [`Program`], and of a static. The last one is null.
#[derive(Debug)]
struct Pointers(Vec<*const c_char>);

// SAFETY: nothing changes these bytes, and they stay where they are when the program moves to another thread.
unsafe impl Send for Pointers {}

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
            Pointers(strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect())
        };
        let mut shell_pointers = vec![SHELL.as_ptr(), SHELL.as_ptr()];
        shell_pointers.extend(arguments.iter().skip(1).map(|s| s.as_ptr()));
        shell_pointers.push(std::ptr::null());
        Program {
            argument_pointers: pointers(&arguments),
            environment_pointers: pointers(&environment),
            shell_pointers: Pointers(shell_pointers),
            candidates,
            _strings: (arguments, environment),
            network: None,
            directory: None,
            user: None,
            ipc: None,
            jail: None,
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

    /// Closes the descriptors that were meant for the program: the program has its own copies. An open namespace would keep the
    /// mounts of a jail.
    pub fn close_given(&mut self) {
        self.jail = None;
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

    /// Sets the IPC and mount namespaces in which the program runs. They may be opened later.
    pub fn enter_ipc(&mut self, ipc: IpcEntry) -> &mut Program {
        self.ipc = Some(ipc);
        self
    }

    /// Returns the IPC and mount namespaces in which the program runs.
    pub fn ipc(&self) -> Option<&IpcEntry> {
        self.ipc.as_ref()
    }

    /// Sets the jail in which the program runs. It starts in the jail's working directory, from which a relative directory begins.
    pub fn enter_jail(&mut self, jail: JailEntry) -> &mut Program {
        self.jail = Some(jail);
        self
    }

    /// Tells whether the program runs in a jail.
    pub fn has_jail(&self) -> bool {
        self.jail.is_some()
    }

    /// Returns the jail in which the program runs.
    pub fn jail_mut(&mut self) -> Option<&mut JailEntry> {
        self.jail.as_mut()
    }

    pub(super) fn jail(&self) -> Option<&JailEntry> {
        self.jail.as_ref()
    }

    pub(super) fn numbered_at(&self) -> Option<RawFd> {
        self.numbered.as_ref().map(|(_, number)| *number)
    }

    /// Sets the program's signal mask, the signals that it ignores and those with the default action.
    pub fn signals(&mut self, mask: SignalSet, ignored: Vec<i32>, defaults: Vec<i32>) -> &mut Program {
        self.mask = mask;
        self.ignored = ignored;
        self.defaults = defaults;
        self
    }

    /// Makes this process as the program is to be, with async-signal-safe calls only.
    fn prepare(&self) -> Result<(), LaunchFailure> {
        if let Some(stdio) = &self.own_stdio
            && let Err(errno) = stdio.install()
        {
            return Err(LaunchFailure { step: LaunchStep::Descriptors, errno });
        }
        if let Some((fd, number)) = &self.numbered
            && let Err(errno) = install_numbered(fd, *number)
        {
            return Err(LaunchFailure { step: LaunchStep::Descriptors, errno });
        }
        for &signal in &self.ignored {
            crate::signal::set_ignored(signal);
        }
        for &signal in &self.defaults {
            crate::signal::set_default(signal);
        }
        if let Some(ipc) = &self.ipc {
            self.enter_private_ipc(ipc)?;
        }
        if let Some(namespace) = &self.network
            && let Err(errno) = enter_network(namespace)
        {
            return Err(LaunchFailure { step: LaunchStep::Network, errno });
        }
        if let Some(Err(errno)) = self.jail.as_ref().map(JailEntry::confine) {
            return Err(LaunchFailure { step: LaunchStep::Jail, errno });
        }
        // Before the change of the directory, which may be closed to the user.
        if let Some(Err(errno)) = self.user.as_ref().map(Credentials::become_user) {
            return Err(LaunchFailure { step: LaunchStep::User, errno: errno.raw_os_error() });
        }
        if let Some(directory) = &self.directory {
            // SAFETY: `directory` is a C string.
            if unsafe { libc::chdir(directory.as_ptr()) } == -1 {
                return Err(LaunchFailure { step: LaunchStep::Directory, errno: errno() });
            }
        }
        if let Err(error) = crate::signal::set_mask(&self.mask) {
            return Err(LaunchFailure {
                step: LaunchStep::Signals,
                errno: error.raw_os_error().unwrap_or(0),
            });
        }
        Ok(())
    }

    /// Enters the IPC and mount namespaces, and the directory there, with async-signal-safe calls only.
    fn enter_private_ipc(&self, ipc: &IpcEntry) -> Result<(), LaunchFailure> {
        ipc.enter().map_err(|errno| LaunchFailure { step: LaunchStep::Ipc, errno: errno.raw_os_error() })?;
        // This process was already in the directory, which may be closed to it. An absolute directory does not begin there.
        match ipc.go_home() {
            Err(_) if self.directory.as_ref().is_some_and(|path| path.to_bytes().starts_with(b"/")) => Ok(()),
            Err(errno) => Err(LaunchFailure { step: LaunchStep::Directory, errno: errno.raw_os_error() }),
            Ok(()) => Ok(()),
        }
    }

    /// Executes the program; returns only if that fails.
    ///
    /// The method makes only async-signal-safe calls and allocates nothing, so that it may run in a clone.
    pub fn exec(&mut self) -> LaunchFailure {
        if let Err(failure) = self.prepare() {
            return failure;
        }
        let mut worst = libc::ENOENT;
        for candidate in &self.candidates {
            // SAFETY: the arguments are a C string and two null-terminated arrays of C strings, all owned by `self`.
            unsafe {
                libc::execve(
                    candidate.as_ptr(),
                    self.argument_pointers.0.as_ptr(),
                    self.environment_pointers.0.as_ptr(),
                )
            };
            match errno() {
                libc::ENOEXEC => {
                    // A script without `#!`: like execvp(3), run it with the shell.
                    self.shell_pointers.0[1] = candidate.as_ptr();
                    // SAFETY: as above.
                    unsafe {
                        libc::execve(
                            SHELL.as_ptr(),
                            self.shell_pointers.0.as_ptr(),
                            self.environment_pointers.0.as_ptr(),
                        )
                    };
                    return LaunchFailure { step: LaunchStep::Exec, errno: errno() };
                }
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                libc::EACCES => worst = libc::EACCES,
                other => return LaunchFailure { step: LaunchStep::Exec, errno: other },
            }
        }
        LaunchFailure { step: LaunchStep::Exec, errno: worst }
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
