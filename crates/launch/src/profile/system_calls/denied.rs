//! What the filter of a jail denies, with the numbers for x86-64 and aarch64.

use rustix::io::Errno;

use super::NONE;

/// Calls that always fail, with their error.
///
/// They load code into the kernel, reach all of the host, or are large parts of the kernel that commands of a jail do not
/// need. Where a program has another way without the call, the error is ENOSYS.
pub(super) const DENIED: &[(&str, (u32, u32), Errno)] = &[
    // Mounts; a jail is made of them.
    ("mount", (165, 40), Errno::PERM),
    ("umount2", (166, 39), Errno::PERM),
    ("pivot_root", (155, 41), Errno::PERM),
    ("open_tree", (428, 428), Errno::PERM),
    ("move_mount", (429, 429), Errno::PERM),
    ("fsopen", (430, 430), Errno::PERM),
    ("fsconfig", (431, 431), Errno::PERM),
    ("fsmount", (432, 432), Errno::PERM),
    ("fspick", (433, 433), Errno::PERM),
    ("mount_setattr", (442, 442), Errno::PERM),
    ("open_tree_attr", (467, 467), Errno::PERM),
    // Namespaces of others; new ones are checked by their flags, which a pointer hides in clone3(2).
    ("setns", (308, 268), Errno::PERM),
    ("clone3", (435, 435), Errno::NOSYS),
    // The kernel and the host.
    ("init_module", (175, 105), Errno::PERM),
    ("finit_module", (313, 273), Errno::PERM),
    ("delete_module", (176, 106), Errno::PERM),
    ("kexec_load", (246, 104), Errno::PERM),
    ("kexec_file_load", (320, 294), Errno::PERM),
    ("reboot", (169, 142), Errno::PERM),
    ("swapon", (167, 224), Errno::PERM),
    ("swapoff", (168, 225), Errno::PERM),
    ("acct", (163, 89), Errno::PERM),
    ("quotactl", (179, 60), Errno::PERM),
    ("quotactl_fd", (443, 443), Errno::PERM),
    ("syslog", (103, 116), Errno::PERM),
    ("settimeofday", (164, 170), Errno::PERM),
    ("clock_settime", (227, 112), Errno::PERM),
    ("vhangup", (153, 58), Errno::PERM),
    ("iopl", (172, NONE), Errno::PERM),
    ("ioperm", (173, NONE), Errno::PERM),
    ("modify_ldt", (154, NONE), Errno::PERM),
    // Parts of the kernel with a large surface.
    ("bpf", (321, 280), Errno::PERM),
    ("perf_event_open", (298, 241), Errno::PERM),
    ("userfaultfd", (323, 282), Errno::PERM),
    ("fanotify_init", (300, 262), Errno::PERM),
    ("io_uring_setup", (425, 425), Errno::NOSYS),
    ("io_uring_enter", (426, 426), Errno::NOSYS),
    ("io_uring_register", (427, 427), Errno::NOSYS),
    // Keys belong to the user, not to the jail.
    ("add_key", (248, 217), Errno::PERM),
    ("request_key", (249, 218), Errno::PERM),
    ("keyctl", (250, 219), Errno::PERM),
    // Opens files without a path.
    ("open_by_handle_at", (304, 265), Errno::PERM),
    // Old calls that no library uses.
    ("uselib", (134, NONE), Errno::NOSYS),
    ("ustat", (136, NONE), Errno::NOSYS),
    ("sysfs", (139, NONE), Errno::NOSYS),
    ("lookup_dcookie", (212, 18), Errno::NOSYS),
];

/// The condition that an argument must meet.
pub(super) enum Check {
    /// It has none of these bits.
    NoBit(u32),
    /// It has no other bits, or is this value.
    OnlyBits { bits: u32, or: u32 },
    /// It is none of these.
    NoneOf(&'static [u32]),
    /// It is one of these; else this error.
    OneOf(&'static [u32], Errno),
}

/// A new user namespace, in which a command would have all capabilities.
const CLONE_NEWUSER: u32 = 0x1000_0000;
/// Puts characters into the input of a terminal, `ioctl_tty(2)`, and the paste of the console.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// `PER_LINUX32`, `UNAME26`, and `ADDR_NO_RANDOMIZE` for debuggers.
const PERSONAS: u32 = 0x0008 | 0x002_0000 | 0x004_0000;
/// Asks for the personality.
const ASK: u32 = u32::MAX;
/// `AF_UNSPEC`, `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`.
const FAMILIES: &[u32] = &[0, 1, 2, 10, 16];

/// Calls of which an argument, by its position, decides.
pub(super) const ARGUMENTS: &[((u32, u32), u32, Check)] = &[
    // clone, unshare
    ((56, 220), 0, Check::NoBit(CLONE_NEWUSER)),
    ((272, 97), 0, Check::NoBit(CLONE_NEWUSER)),
    // ioctl
    ((16, 29), 1, Check::NoneOf(&[TIOCSTI, TIOCLINUX])),
    // personality
    ((135, 92), 0, Check::OnlyBits { bits: PERSONAS, or: ASK }),
    // socket, socketpair
    ((41, 198), 0, Check::OneOf(FAMILIES, Errno::AFNOSUPPORT)),
    ((53, 199), 0, Check::OneOf(FAMILIES, Errno::AFNOSUPPORT)),
];
