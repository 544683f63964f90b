//! The filter of system calls of a jail: what it denies, and that usual programs run.

use std::collections::BTreeMap;
use std::fs;

use super::jail::environments;
use crate::support::{TestEnv, has_program};

/// Makes each call with harmless arguments, and prints its error number, or 0. The last line is how a child ended that made a
/// call of 32-bit x86.
const PROBE: &str = r#"
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
x86 = platform.machine() == "x86_64"
def call(name, x86_64, aarch64, *arguments):
    ctypes.set_errno(0)
    words = [ctypes.c_long(word) for word in arguments]
    result = libc.syscall(ctypes.c_long(x86_64 if x86 else aarch64), *words)
    print(name, ctypes.get_errno() if result == -1 else 0, flush=True)
    return result
call("mount", 165, 40, 0, 0, 0, 0, 0)
call("open_tree", 428, 428, -1, 0, 0)
call("fsopen", 430, 430, 0, 0)
call("setns", 308, 268, -1, 0)
call("clone3", 435, 435, 0, 0)
call("init_module", 175, 105, 0, 0, 0)
call("kexec_load", 246, 104, 0, 0, 0, -1)
call("bpf", 321, 280, -1, 0, 0)
call("perf_event_open", 298, 241, 0, 0, 0, 0, 0)
call("userfaultfd", 323, 282, -1)
call("io_uring_setup", 425, 425, 0, 0)
call("keyctl", 250, 219, 0, -1, 0)
call("add_key", 248, 217, 0, 0, 0, 0, 0)
call("open_by_handle_at", 304, 265, -1, 0, 0)
call("personality", 135, 92, 0x0400000)
call("debugger", 135, 92, 0x0040000)
call("query", 135, 92, 0xffffffff)
call("ioctl", 16, 29, -1, 0x5412, 0)
call("TCGETS", 16, 29, -1, 0x5401, 0)
call("AF_ALG", 41, 198, 38, 5, 0)
call("AF_INET", 41, 198, 2, 1, 0)
call("AF_UNIX", 53, 199, 1, 1, 0, 0)
call("ptrace", 101, 117, -1, 0, 0, 0)
if os.fork() == 0:
    call("unshare", 272, 97, 0x10000000)
    os._exit(0)
os.wait()
def foreign():
    import mmap
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()
child = os.fork()
if child == 0:
    if x86: foreign()
    os._exit(0)
status = os.waitpid(child, 0)[1]
print("i386", status & 127)
print("fds", len([fd for fd in os.listdir("/proc/self/fd")]))
"#;

/// The results of the probe, by name.
fn probe(env: &TestEnv, words: &[&str]) -> BTreeMap<String, i32> {
    fs::write(env.path("work/probe.py"), PROBE).unwrap();
    let done = env.run([&["--profile", "jail"], words, &["--", "python3", "probe.py"]].concat()).with_code(0);
    let pairs = done.out();
    let pairs = pairs.lines().map(|line| line.split_once(' ').unwrap());
    pairs.map(|(name, result)| (name.to_owned(), result.parse().unwrap())).collect()
}

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;
const EAFNOSUPPORT: i32 = 97;
const EBADF: i32 = 9;
const EFAULT: i32 = 14;
const SIGSYS: i32 = 31;

/// spec: 19.5
#[test]
fn each_denied_call_fails_and_without_the_filter_it_does_not() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    for env in environments() {
        let with = probe(&env, &[]);
        for denied in [
            "mount",
            "open_tree",
            "fsopen",
            "setns",
            "init_module",
            "kexec_load",
            "bpf",
            "perf_event_open",
            "userfaultfd",
            "keyctl",
            "add_key",
            "open_by_handle_at",
            "personality",
            "ioctl",
            "unshare",
        ] {
            assert_eq!(with[denied], EPERM, "{denied}");
        }
        assert_eq!((with["clone3"], with["io_uring_setup"]), (ENOSYS, ENOSYS));
        assert_eq!(with["AF_ALG"], EAFNOSUPPORT);
        for allowed in ["debugger", "query", "AF_INET"] {
            assert_eq!(with[allowed], 0, "{allowed}");
        }
        assert_eq!((with["TCGETS"], with["AF_UNIX"]), (EBADF, EFAULT));
        assert_ne!(with["ptrace"], EPERM);
        let without = probe(&env, &["--no-seccomp"]);
        for name in ["setns", "clone3", "keyctl", "add_key", "personality", "ioctl", "io_uring_setup"] {
            assert_ne!(without[name], with[name], "{name}");
        }
        assert_eq!(without["fds"], with["fds"], "the command has no descriptor of the filter");
        // Where the kernel runs 32-bit programs.
        if without["i386"] == 0 && cfg!(target_arch = "x86_64") {
            assert_eq!(with["i386"], SIGSYS);
        }
        env.assert_nothing_left();
    }
}

/// spec: 19.5
#[test]
fn usual_programs_run() {
    let python = "import subprocess, threading, socket, tempfile, multiprocessing, asyncio\n\
        threads = [threading.Thread(target=print, args=('thread',)) for _ in range(3)]\n\
        [thread.start() for thread in threads]; [thread.join() for thread in threads]\n\
        assert subprocess.run(['sh', '-c', 'echo child'], check=True).returncode == 0\n\
        socket.create_server(('127.0.0.1', 0)).close(); tempfile.TemporaryFile().close()\n\
        asyncio.run(asyncio.create_subprocess_exec('true'))\n\
        assert multiprocessing.get_context('fork').Pool(2).map(abs, [-1]) == [1]\n";
    let git = "cd $(mktemp -d) && git init -q r && cd r && echo x > f && git add f && \
        git -c user.name=a -c user.email=a@b commit -qm m && git clone -q . ../c && git -C ../c log --oneline";
    let bash = "set -m; sleep 0.05 & jobs; kill -STOP %1; kill -CONT %1; wait %1; (exit 3) || test $? = 3; \
        coproc cat; echo hi >&${COPROC[1]}; read -r line <&${COPROC[0]}; test $line = hi; diff <(echo a) <(echo a)";
    let node = "const { execFileSync } = require('child_process'); const fs = require('fs');\
        fs.promises.writeFile('n', 'x').then(() => fs.promises.readFile('n')).then(() => \
        require('http').createServer().listen(0, '127.0.0.1', function () { this.close(); \
        execFileSync('true'); new (require('worker_threads').Worker)('0', { eval: true }); }))";
    let programs: [(&str, &[&str]); 6] = [
        ("python3", &["python3", "-c", python]),
        ("git", &["sh", "-ec", git]),
        ("bash", &["bash", "-ec", bash]),
        ("node", &["node", "-e", node]),
        ("perl", &["perl", "-e", "system('true') == 0 or die; fork // die; 1 while wait > 0"]),
        (
            "tar",
            &[
                "sh",
                "-ec",
                "tar cf - /etc/passwd 2>/dev/null | tar tf - | grep -q passwd; find . >/dev/null; ls -l; date",
            ],
        ),
    ];
    for env in environments() {
        for (program, words) in programs {
            if !has_program(&[program, "--version"]) {
                continue;
            }
            let jail = ["--profile", "jail", "-e", "HOME=/tmp", "--"];
            let done = env.run([&jail[..], words].concat());
            assert_eq!(done.code(), Some(0), "{program}: {}{}", done.out(), done.err());
        }
        env.assert_nothing_left();
    }
}
