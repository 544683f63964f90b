//! Signal masks, dispositions and the signal descriptor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(pub(crate) libc::sigset_t);

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries((1..=64).filter(|&signal| self.contains(signal))).finish()
    }
}

impl SignalSet {
    /// Returns an empty set.
    pub fn empty() -> SignalSet {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `set` is valid for writes of a sigset_t.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: sigemptyset initialised it.
        SignalSet(unsafe { set.assume_init() })
    }

    /// Returns the set of these signals. Numbers that are not signals are ignored.
    pub fn of(signals: impl IntoIterator<Item = i32>) -> SignalSet {
        let mut set = SignalSet::empty();
        for signal in signals {
            set.insert(signal);
        }
        set
    }

    /// Adds a signal. A number that is not a signal changes nothing.
    pub fn insert(&mut self, signal: i32) {
        // SAFETY: the set is initialised; a bad number is refused with EINVAL.
        unsafe { libc::sigaddset(&raw mut self.0, signal) };
    }

    /// Tells whether the signal is in the set.
    pub fn contains(&self, signal: i32) -> bool {
        // SAFETY: the set is initialised; for a bad number the call returns -1.
        unsafe { libc::sigismember(&raw const self.0, signal) == 1 }
    }
}

/// `sigprocmask(SIG_BLOCK)`—Blocks these signals in the calling thread and returns the previous mask.
///
/// # Errors
/// None that a caller can cause.
pub fn block_signals(set: &SignalSet) -> io::Result<SignalSet> {
    let mut before = SignalSet::empty();
    // SAFETY: both sets are initialised and valid.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set.0, &raw mut before.0) };
    if result == 0 { Ok(before) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// `sigprocmask(SIG_SETMASK)`—Replaces the mask of the calling thread.
///
/// # Errors
/// None that a caller can cause.
pub fn set_mask(set: &SignalSet) -> io::Result<()> {
    // SAFETY: the set is initialised and valid; a null pointer skips the old mask.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set.0, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// Tells whether the process ignores this signal now.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `action` is valid for writes; a null new action changes nothing.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if result != 0 {
        return false;
    }
    // SAFETY: sigaction filled it in.
    let action = unsafe { action.assume_init() };
    action.sa_sigaction == libc::SIG_IGN
}

/// Gives a signal its default action.
pub fn set_default(signal: i32) {
    // SAFETY: SIG_DFL installs no code.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Ignores a signal.
pub fn set_ignored(signal: i32) {
    // SAFETY: SIG_IGN installs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Ends this process by a signal, without a core file, even if the signal is ignored or blocked.
///
/// The launcher ends this way when its command was ended by the signal. The function returns in two cases:
/// - the signal's default action does not end a process
/// - the process is the init of its pid namespace, and its own signals do not end it
pub fn die_of(signal: i32) {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior, setrlimit};
    // A core_pattern(5) that is a pipe does not respect the limit.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if signal != Signal::KILL.as_raw() {
        set_default(signal);
    }
    // Only this signal may be delivered, not another pending one. The mask comes first: while every thread blocks the signal,
    // another thread could take it from a signalfd.
    let _ = set_mask(&SignalSet::of((1..=64).filter(|&other| other != signal)));
    if let Some(signal) = self::signal_of_number(signal) {
        #[expect(clippy::disallowed_methods, reason = "this process cannot be another")]
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}

static PIPE_INHERITED_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn record_inherited() {
    PIPE_INHERITED_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// Runs before the Rust runtime ignores SIGPIPE, so that the disposition chosen by this program's caller is known.
#[used]
// SAFETY: the loader calls entries of .init_array once, before main, with the C calling convention. The function only
// reads a disposition and stores a flag.
#[unsafe(link_section = ".init_array")]
static RECORD_INHERITED: extern "C" fn() = record_inherited;

/// Tells whether SIGPIPE was ignored when this program started.
pub fn pipe_inherited_ignored() -> bool {
    PIPE_INHERITED_IGNORED.load(Ordering::Relaxed)
}

/// A signal read from a [`SignalFd`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalRecord {
    /// The number of the signal.
    pub signal: i32,
    /// Whether the kernel sent the signal (as for a terminal's Ctrl-C), rather than a process with `kill`.
    pub from_kernel: bool,
    /// The pid of the sender; 0 for the kernel, and for a sender outside this pid namespace.
    pub sender: u32,
    /// The user id of the sender.
    pub uid: u32,
    /// The signal carried in the value, see [`pass_on`].
    pub carried: Option<Signal>,
    /// The value that came with the signal, see [`queue_signal`]; 0 for other signals.
    pub value: u64,
}

/// A `siginfo_t` as sigqueue(3) fills it in.
#[repr(C)]
struct QueuedInfo {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    from: QueuedFrom,
}

#[repr(C)]
struct QueuedFrom {
    pid: libc::pid_t,
    uid: libc::uid_t,
    value: QueuedValue,
}

#[repr(C)]
union QueuedValue {
    number: libc::c_int,
    pointer: *mut libc::c_void,
}

/// Sends SIGTERM to a launcher or supervisor, carrying the signal with which it should ask its own members to end.
///
/// Sent alone, that other signal would not ask a launcher or supervisor to end its sandbox. A process that is gone is
/// no error.
///
/// # Errors
/// Those of [pidfd_send_signal(2)](https://man7.org/linux/man-pages/man2/pidfd_send_signal.2.html).
pub fn pass_on(process: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    let mut value = QueuedValue { pointer: std::ptr::null_mut() };
    value.number = signal.as_raw();
    match send_queued(process, libc::SIGTERM, value) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

/// Sends a signal with a value. Each real-time signal is delivered, in order.
///
/// # Errors
/// Those of [pidfd_send_signal(2)](https://man7.org/linux/man-pages/man2/pidfd_send_signal.2.html): `EAGAIN` when too
/// many signals are pending, `ESRCH` for a process that is gone.
pub fn queue_signal(process: BorrowedFd<'_>, signal: i32, value: u64) -> io::Result<()> {
    let value = usize::try_from(value).map_err(io::Error::other)?;
    send_queued(process, signal, QueuedValue { pointer: std::ptr::without_provenance_mut(value) })
}

fn send_queued(process: BorrowedFd<'_>, signal: i32, value: QueuedValue) -> io::Result<()> {
    let from = QueuedFrom { pid: 0, uid: 0, value };
    let queued = QueuedInfo { signal, error: 0, code: libc::SI_QUEUE, from };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the value is the beginning of a siginfo_t as the kernel reads it, no larger and no more aligned.
    unsafe { info.as_mut_ptr().cast::<QueuedInfo>().write(queued) };
    let fd = process.as_raw_fd();
    // SAFETY: the kernel reads a siginfo_t, which `info` has room for.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info.as_ptr(), 0) };
    if sent == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `signalfd(2)`: a descriptor from which blocked signals are polled and read.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Opens a non-blocking, close-on-exec descriptor for these signals. The caller must have blocked them.
    ///
    /// # Errors
    /// Those of [signalfd(2)](https://man7.org/linux/man-pages/man2/signalfd.2.html).
    pub fn open(set: &SignalSet) -> io::Result<SignalFd> {
        // SAFETY: the set is initialised; -1 requests a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set.0, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(SignalFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Reads the next pending signal, if there is a pending signal.
    ///
    /// # Errors
    /// Those of read(2) but `EAGAIN`, which is `None`.
    pub fn take(&self) -> io::Result<Option<SignalRecord>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` is valid for writes of its size.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read == -1 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: zero is a valid value of every member and the kernel writes whole records.
        let info = unsafe { info.assume_init() };
        let signal = i32::try_from(info.ssi_signo).unwrap_or(0);
        let from_kernel = info.ssi_code == libc::SI_KERNEL;
        let is_queued = info.ssi_code == libc::SI_QUEUE;
        let carried = if is_queued { self::signal_of_number(info.ssi_int) } else { None };
        let value = if is_queued { info.ssi_ptr } else { 0 };
        Ok(Some(SignalRecord {
            signal,
            from_kernel,
            sender: info.ssi_pid,
            uid: info.ssi_uid,
            carried,
            value,
        }))
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the signal with this number. `None` for numbers that are not signals and those reserved by glibc (32 and
/// 33).
pub fn signal_of_number(number: i32) -> Option<Signal> {
    if !(1..=64).contains(&number) || number == 32 || number == 33 {
        return None;
    }
    // SAFETY: the check above limits the number to 1..=64 without the two that glibc keeps for itself.
    Some(unsafe { Signal::from_raw_unchecked(number) })
}
