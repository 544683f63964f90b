//! System calls of x86-64: their names, and the file of a call.

use std::fs;
use std::os::unix::fs::FileExt;

use penfold_sys::trace::SystemCall;
use serde::{Deserialize, Serialize};

/// A call of a penfold process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObservedCall {
    /// The role of the process.
    pub(crate) role: String,
    /// The name of the call.
    pub(crate) call: String,
    /// See [`object`].
    pub(crate) object: String,
}

/// The calls from number 0 on, in order.
const LOW: &str = "\
    read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask \
    rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore \
    madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket \
    connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair \
    setsockopt getsockopt clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget \
    msgsnd msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename \
    mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown umask gettimeofday \
    getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid \
    getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid \
    getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo \
    rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs getpriority \
    setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max \
    sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt \
    pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2 \
    swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module \
    get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid \
    readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr \
    removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity \
    set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie \
    epoll_create epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall \
    semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete \
    clock_settime clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes \
    vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify \
    mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init \
    inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat \
    unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list \
    get_robust_list splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd \
    timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 \
    epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg \
    fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg \
    setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 \
    seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2 \
    copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq";
/// The calls from number 424 on; the numbers between have no calls.
const HIGH: &str = "\
    pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig \
    fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 \
    mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret \
    process_mrelease futex_waitv set_mempolicy_home_node";
const HIGH_BEGINS: usize = 424;

/// The names, for look-up by number.
#[derive(Debug)]
pub(crate) struct Names {
    low: Vec<&'static str>,
    high: Vec<&'static str>,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names { low: LOW.split(' ').collect(), high: HIGH.split(' ').collect() }
    }

    /// Returns the name of a call; `other` for a call newer than this table.
    pub(crate) fn of(&self, call: &SystemCall) -> &'static str {
        let number = usize::try_from(call.number).unwrap_or(usize::MAX);
        let found = match number.checked_sub(HIGH_BEGINS) {
            Some(number) => self.high.get(number),
            None => self.low.get(number),
        };
        found.copied().unwrap_or("other")
    }
}

/// The longest name that is read.
const LONGEST: usize = 512;

/// Returns the path argument of a call, or the file of its descriptor. Empty for calls without either.
pub(crate) fn object(pid: i32, name: &str, call: &SystemCall) -> String {
    let [first, second, third, ..] = call.arguments;
    match name {
        "openat" | "openat2" | "mkdirat" | "unlinkat" | "newfstatat" | "faccessat" | "faccessat2"
        | "readlinkat" | "statx" | "renameat" | "renameat2" | "linkat" | "fchmodat" => {
            below(pid, first, &text(pid, second))
        }
        "open" | "execve" | "statfs" | "access" | "readlink" | "stat" | "lstat" | "mkdir" | "rmdir"
        | "unlink" | "chdir" | "lgetxattr" => text(pid, first),
        "symlinkat" => text(pid, third),
        "read" | "pread64" | "write" | "pwrite64" | "flock" | "getdents64" | "fstat" | "fcntl"
        | "fsetxattr" | "fgetxattr" | "ftruncate" | "fallocate" | "fsync" | "fstatfs" | "ioctl" | "lseek" => {
            let link = fs::read_link(format!("/proc/{pid}/fd/{first}"));
            link.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// A path as the call means it: below the directory of its descriptor, if it has one.
fn below(pid: i32, directory: u64, path: &str) -> String {
    // AT_FDCWD is no descriptor, so it has no link.
    match fs::read_link(format!("/proc/{pid}/fd/{directory}")) {
        Ok(directory) => directory.join(path).to_string_lossy().into_owned(),
        Err(_) => path.to_owned(),
    }
}

fn text(pid: i32, address: u64) -> String {
    let mut bytes = vec![0_u8; LONGEST];
    let length = fs::File::open(format!("/proc/{pid}/mem"))
        .and_then(|memory| memory.read_at(&mut bytes, address))
        .unwrap_or(0);
    let bytes = bytes.get(..length).unwrap_or_default();
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_their_names() {
        let names = Names::new();
        for (number, name) in
            [(0, "read"), (257, "openat"), (334, "rseq"), (434, "pidfd_open"), (435, "clone3")]
        {
            assert_eq!(names.of(&SystemCall { number, arguments: [0; 6] }), name);
        }
        assert_eq!(names.of(&SystemCall { number: 400, arguments: [0; 6] }), "other");
    }
}
