//! `ports`: who listens where.

use std::net::TcpListener;

use serde_json::{Value, json};

use super::sandboxes::remove;
use crate::support::{Process, TestEnv, has_program, is_root, wait_until};

/// Listens on a port of this address that it tells, until it is ended.
const LISTENER: &str = "
import signal, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(listener.getsockname()[1], flush=True)
signal.pause()
";

fn row(env: &TestEnv, port: u64) -> Vec<Value> {
    let found = env.call(["ports", &port.to_string(), "--json"]).with_code(0).json();
    found.as_array().unwrap().clone()
}

/// spec: 24.6
#[test]
fn whoever_listens_is_named_sandboxes_first() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let outside = u64::from(outside.local_addr().unwrap().port());
    for level in env.levels() {
        let words =
            ["--name", "web", "--contain", level.word(), "--", "python3", "-c", LISTENER, "127.0.0.1", "0"];
        let sandbox = env.detach(words);
        let told = || sandbox.call(&env, &["logs", "ID"]).out().trim().parse::<u64>().ok();
        wait_until("it listens", || told().is_some());
        let port = told().unwrap();
        let pid = sandbox.members(&env).iter().map(Process::pid).max().unwrap();
        let found = row(&env, port);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        let user = rustix::process::geteuid().as_raw();
        for (field, value) in [
            ("address", json!("127.0.0.1")),
            ("port", json!(port)),
            ("sandbox", json!(sandbox.id)),
            ("name", json!("web")),
            ("is_own_network", json!(false)),
            ("pid", json!(pid)),
            ("user", json!(user)),
        ] {
            assert_eq!(one[field], value, "{field}: {one}");
        }
        assert!(one["command"].as_str().unwrap().contains("python3 -c "), "{one}");
        let table = env.call(["ports"]).with_code(0).out();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>()[..3], ["PORT", "ADDRESS", "SANDBOX"]);
        let at = |text: String| lines.iter().position(|line| line.starts_with(&text)).unwrap();
        assert_eq!(at(format!("{port} ")), 1, "{table}");
        assert!(at(format!("{outside} ")) > 1, "{table}");
        let status = sandbox.call(&env, &["status", "ID"]).with_code(0).out();
        assert!(status.contains(&format!("\nlistens   {port}\n")), "{status}");
        // The port that is taken names its holder.
        let probe = format!("port:{port}");
        let script = [LISTENER, "127.0.0.1", &port.to_string()].map(str::to_owned);
        let mut start = vec!["run", "-d", "--ready", &probe, "--", "python3", "-c"];
        start.extend(script.iter().map(String::as_str));
        let said = env.call(start).with_code(125).err();
        assert!(said.contains(&format!("; 127.0.0.1:{port} is held by sandbox web (pid {pid}, ")), "{said}");
        assert!(said.contains("`penfold stop web`"), "{said}");
        let failed = env.listed_ids(&["-a"]).into_iter().find(|id| *id != sandbox.id).unwrap();
        env.call(["rm", &failed]).with_code(0);
        remove(&env, &sandbox);
        assert_eq!(row(&env, port), Vec::<Value>::new());
        let none = env.call(["ports", &port.to_string()]).with_code(0);
        assert_eq!(
            (none.out().as_str(), none.err()),
            ("", format!("penfold: nothing listens on port {port}\n"))
        );
    }
    env.assert_nothing_left();
}

/// spec: 24.6
#[test]
fn a_port_of_an_own_network_is_in_nobodys_way() {
    if !is_root() || !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port().to_string();
    let probe = format!("port:{port}");
    let sandbox =
        env.detach(["--netns", "--ready", &probe, "--", "python3", "-c", LISTENER, "0.0.0.0", &port]);
    let found = row(&env, port.parse().unwrap());
    let [inside, here] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((&inside["sandbox"], &inside["is_own_network"]), (&json!(sandbox.id), &json!(true)));
    assert_eq!((&here["sandbox"], &here["is_own_network"]), (&json!(null), &json!(false)));
    assert_eq!(here["pid"], json!(std::process::id()));
    // Whoever waits for the port in another own network is told nothing of either.
    let words =
        ["run", "-d", "--rm", "--netns", "--ready", &probe, "--ready-timeout", "300ms", "--", "sleep", "9"];
    let said = env.call(words).with_code(125).err();
    assert!(said.contains("was not ready") && !said.contains("is held"), "{said}");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 24.6
#[test]
fn a_port_number_is_checked() {
    let env = TestEnv::new();
    for wrong in ["0", "65536", "http", "-1"] {
        env.call(["ports", "--", wrong]).with_code(2);
    }
}
