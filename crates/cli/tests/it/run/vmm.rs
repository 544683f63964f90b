//! `penfold run --profile vmm`: a virtual machine monitor is asked to end its guest by its own API.
//!
//! Firecracker and Cloud Hypervisor need `/dev/kvm`. A program of the same name plays their part; the requests are those of
//! their published descriptions.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Sandbox, TestEnv, has_program, wait_until};

/// Listens on the API socket. Exits with 0 when a request is the one in `$ASKED`, else answers 400.
const FAKE: &str = r#"#!/usr/bin/python3
import http.server, os, socketserver, sys
words = sys.argv[:sys.argv.index("--")] if "--" in sys.argv else sys.argv
where = words[words.index(os.environ["OPTION"]) + 1].removeprefix("path=")
class Api(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        asked = f"PUT {self.path} {body}".strip()
        print(asked, self.headers.get("content-type"), flush=True)
        good = asked == os.environ["ASKED"]
        self.send_response(204 if good else 400)
        self.end_headers()
        self.wfile.flush()
        if good: os._exit(0)
    def address_string(self): return "client"
class Server(socketserver.UnixStreamServer):
    def get_request(self): return super().get_request()[0], ("client", 0)
Server(where, Api).serve_forever()
"#;

/// Makes the fake monitor, and returns its path.
fn fake(env: &TestEnv, name: &str) -> PathBuf {
    let path = env.path("work").join(name);
    std::fs::write(&path, FAKE).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn has_python() -> bool {
    has_program(&["/usr/bin/python3", "-c", "import http.server"])
}

/// Waits for the API socket in the directory of sockets, and returns its path.
#[track_caller]
fn await_socket(env: &TestEnv, sandbox: &Sandbox) -> PathBuf {
    let path = env.root().join("sockets").join(&sandbox.id).join("vmm");
    wait_until("the monitor listens", || std::os::unix::net::UnixStream::connect(&path).is_ok());
    path
}

/// Stops a sandbox, and returns its report.
#[track_caller]
fn stopped(env: &TestEnv, sandbox: &Sandbox) -> Value {
    env.call(["stop", &sandbox.id]).with_code(0);
    sandbox.assert_gone(&[]);
    assert!(!env.root().join("sockets").join(&sandbox.id).try_exists().unwrap());
    sandbox.file("report.json").unwrap()
}

#[track_caller]
fn assert_ended_by_request(report: &Value) {
    assert_eq!(report["exit"]["code"], 0, "{report}");
    let steps = report["steps"].as_array().unwrap();
    let asked: Vec<&Value> = steps.iter().filter(|step| step["what"] == "stop command").collect();
    assert!(asked.len() == 1 && asked.iter().all(|step| step["error"].is_null()), "{report}");
    assert!(steps.iter().all(|step| step["what"] != "ask"), "the monitor got the signal, too: {report}");
}

const FIRECRACKER: [&str; 3] =
    ["firecracker", "--api-sock", r#"PUT /actions {"action_type":"SendCtrlAltDel"}"#];
const CLOUD_HYPERVISOR: [&str; 3] = ["cloud-hypervisor", "--api-socket", "PUT /api/v1/vm.power-button"];

/// spec: 20.1
#[test]
fn firecracker_and_cloud_hypervisor_are_asked_by_their_api() {
    if !has_python() {
        return;
    }
    let env = TestEnv::new();
    for [name, option, asked] in [FIRECRACKER, CLOUD_HYPERVISOR] {
        let program = fake(&env, name);
        let variables = [format!("OPTION={option}"), format!("ASKED={asked}")];
        let flags =
            ["run", "-d", "--profile", "vmm", "--grace", "1h", "-e", &variables[0], "-e", &variables[1]];
        let direct = env.call(flags.iter().copied().chain(["--", program.to_str().unwrap()])).with_code(0);
        let sandbox = Sandbox::printed(&env, &direct.out());
        await_socket(&env, &sandbox);
        assert_ended_by_request(&stopped(&env, &sandbox));

        // What follows `--` is not for the monitor.
        let more = ["--", program.to_str().unwrap(), "--", "--level", "debug"];
        let direct = env.call(flags.iter().chain(&more)).with_code(0);
        let sandbox = Sandbox::printed(&env, &direct.out());
        await_socket(&env, &sandbox);
        assert_ended_by_request(&stopped(&env, &sandbox));

        let script = format!("'{}' {option} $PENFOLD_VMM_SOCKET; exit", program.display());
        let wrapped = env.call(flags.iter().copied().chain(["--", "sh", "-c", &script])).with_code(0);
        let sandbox = Sandbox::printed(&env, &wrapped.out());
        await_socket(&env, &sandbox);
        assert_ended_by_request(&stopped(&env, &sandbox));
    }
}

/// spec: 20.1
#[test]
fn a_monitor_that_refuses_gets_the_signal_at_once() {
    if !has_python() {
        return;
    }
    let env = TestEnv::new();
    let program = fake(&env, "firecracker");
    let flags =
        ["run", "-d", "--profile", "vmm", "--grace", "1h", "-e", "OPTION=--api-sock", "-e", "ASKED=nothing"];
    let started = env.call(flags.iter().copied().chain(["--", program.to_str().unwrap()])).with_code(0);
    let sandbox = Sandbox::printed(&env, &started.out());
    await_socket(&env, &sandbox);
    let report = stopped(&env, &sandbox);
    assert_eq!(report["exit"]["signal"], 15, "{report}");
    let log = env.call(["logs", &sandbox.id]).with_code(0);
    let said = log.out();
    assert_eq!(said.trim_end(), format!("{} application/json", FIRECRACKER[2]), "{}", log.err());
}

/// The command owns the directory of sockets, and must not lead penfold's request to a socket of the host.
///
/// spec: 20.1
#[test]
fn a_request_follows_no_symbolic_link() {
    let env = TestEnv::new();
    let other = env.path("work/other");
    let listener = UnixListener::bind(&other).unwrap();
    listener.set_nonblocking(true).unwrap();
    let flags = ["--profile", "vmm", "--vmm", "firecracker", "--grace", "1h"];
    let script = "echo up; exec sleep 1000 $PENFOLD_VMM_SOCKET_IS_NOT_USED";
    let sandbox = env.detach(flags.iter().copied().chain(["--", "sh", "-c", script]));
    symlink(&other, env.root().join("sockets").join(&sandbox.id).join("vmm")).unwrap();
    let report = stopped(&env, &sandbox);
    assert_eq!(report["exit"]["signal"], 15, "{report}");
    let answer = listener.accept().map(drop).unwrap_err();
    assert_eq!(answer.kind(), std::io::ErrorKind::WouldBlock, "the other socket got a connection");
}

/// spec: 20.1
#[test]
fn a_real_qemu_answers_its_own_protocol() {
    if !has_program(&["qemu-system-x86_64", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let qemu = ["qemu-system-x86_64", "-M", "none", "-nographic", "-nodefaults"];
    // Without a guest nothing reacts to the power button, so `quit` shows that the conversation works.
    let path = env.path("work/quit.json");
    std::fs::write(&path, r#"{"stop":{"qmp":{"socket":"vmm","execute":"quit"}}}"#).unwrap();
    let quit = format!("--spec={}", path.display());
    let flags = ["--profile", "vmm", "--grace", "1h", quit.as_str(), "--"];
    let sandbox = env.detach(flags.iter().chain(&qemu));
    await_socket(&env, &sandbox);
    assert_ended_by_request(&stopped(&env, &sandbox));

    let sandbox = env.detach(["--profile", "vmm", "--grace", "1s", "--"].iter().chain(&qemu));
    await_socket(&env, &sandbox);
    let report = stopped(&env, &sandbox);
    let steps: Vec<&str> =
        report["steps"].as_array().unwrap().iter().filter_map(|step| step["what"].as_str()).collect();
    assert_eq!(steps.get(..2), Some(["stop command", "ask"].as_slice()), "{report}");
    assert!(report["steps"].as_array().unwrap().iter().all(|step| step["error"].is_null()), "{report}");
}

/// spec: 20.1
#[test]
fn a_monitor_that_cannot_be_asked_is_refused() {
    let env = TestEnv::new();
    let cases: [(&[&str], &str); 6] = [
        (&["--profile", "vmm", "echo", "ran"], "names no virtual machine monitor"),
        (
            &["--profile", "vmm", "sh", "-c", "qemu-system-x86_64 -M none"],
            "does not listen on `$PENFOLD_VMM_SOCKET`",
        ),
        (&["--profile", "vmm", "firecracker", "--api-sock", "/tmp/x"], "the command has it already"),
        (&["--profile", "vmm", "--network", "none", "firecracker"], "of the profile `jail`"),
        (&["--profile", "jail", "--vmm", "qemu", "echo", "ran"], "of the profile `vmm`"),
        (&["--vmm", "qemu", "echo", "ran"], "--profile"),
    ];
    for (words, part) in cases {
        env.run(words).refused(125, part);
    }
}

/// spec: 20.2
#[test]
fn a_file_describes_a_monitor_and_how_it_is_asked() {
    let env = TestEnv::new();
    let asked = "command = ['sh', '-c', 'while ! [ -e go ]; do sleep 0.05; done; exit 7']\n\
        grace_ms = 3600000\n[stop]\ncommand = ['touch', 'go']\n";
    std::fs::write(env.path("work/box.toml"), asked).unwrap();
    let sandbox = env.detach(["--spec", "box.toml"]);
    assert_eq!(stopped(&env, &sandbox)["exit"]["code"], 7);
    let monitor = "command = ['firecracker', '--api-sock', '/x']\nprofile = 'vmm'\n";
    std::fs::write(env.path("work/box.toml"), monitor).unwrap();
    env.run(["--spec", "box.toml"]).refused(125, "the command has it already");
    let wrong = "command = ['true']\n[stop.qmp]\nsocket = 'q'\nexecutes = 'quit'\n";
    std::fs::write(env.path("work/box.toml"), wrong).unwrap();
    env.run(["--spec", "box.toml"]).refused(125, "executes");
}
