//! What a command leaves behind goes on, and ends with its sandbox or by a kill.

use serde_json::json;

use super::{Api, running};
use crate::support::wait_until;

/// spec: 13.9.3
#[test]
fn what_a_command_leaves_goes_on_until_its_sandbox_ends() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    // It holds the pipes of its command.
    let (said, end) = api.start_command(&guest, "sleep 1017 & echo left").finish();
    assert_eq!((said.stdout.as_str(), &end["exitCode"]), ("left\n", &json!(0)));
    wait_until("it lives", || running("sleep 1017") == 1);
    // The command itself has ended.
    assert_eq!(api.ok(&guest, "/process.Process/List", &json!({})), json!({ "processes": [] }));
    assert_eq!(api.out(&guest, "echo more"), "more\n");
    api.delete(&guest);
    assert_eq!(running("sleep 1017"), 0);
    api.server.end();
    api.env.assert_nothing_left();
}

/// spec: 13.9.3
#[test]
fn a_kill_ends_what_a_command_has_left() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let mut command =
        api.start_with(&guest, "", &json!({ "tag": "left" }), "setsid sleep 1018 & (sleep 1018 &); echo up");
    let pid = command.pid();
    assert_eq!(command.finish().1["exitCode"], 0);
    wait_until("both live", || running("sleep 1018") == 2);
    let send = |signal: &str| {
        let message = json!({ "process": { "pid": pid }, "signal": signal });
        api.call(&guest, "/process.Process/SendSignal", &message).0
    };
    // There is no first process any more.
    assert_eq!(send("SIGNAL_SIGTERM"), 404);
    assert_eq!(running("sleep 1018"), 2);
    assert_eq!(send("SIGNAL_SIGKILL"), 200);
    assert_eq!(running("sleep 1018"), 0);
    assert_eq!(send("SIGNAL_SIGKILL"), 404);
    let (_, end) =
        api.stream(&guest, "/process.Process/Connect", "", &json!({ "process": { "pid": pid } })).finish();
    assert_eq!(end["exitCode"], 0, "the exit of the command stays as it was");
}

/// spec: 13.9.3
#[test]
fn an_exec_is_over_when_the_last_of_what_it_left_has_ended() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    api.out(&guest, "mkfifo go; (read x < go) & echo up");
    let execs = || api.env.listed(&[])[0]["execs"].as_array().map_or(0, Vec::len);
    assert_eq!(execs(), 1);
    api.out(&guest, "echo x > go");
    wait_until("no exec is left", || execs() == 0);
}

/// spec: 13.9.3
#[test]
fn the_time_limit_of_a_command_is_not_for_what_it_leaves() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let limited = "connect-timeout-ms: 300\r\n";
    let (_, end) = api.start_with(&guest, limited, &json!({}), "sleep 1019 & sleep 1020 & echo up").finish();
    assert_eq!(end["exitCode"], 0);
    // Another command runs into a limit that ends later.
    let late = api.start_with(&guest, "connect-timeout-ms: 400\r\n", &json!({}), "sleep 1021").error();
    assert_eq!(late["code"], "deadline_exceeded");
    assert_eq!((running("sleep 1019"), running("sleep 1020")), (1, 1));
}

/// spec: 13.9.3
#[test]
fn nothing_wakes_up_while_something_left_lives() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    api.out(&guest, "sleep 1022 & echo up");
    let [sandbox] = &api.env.listed(&[])[..] else { panic!("not one sandbox") };
    let supervisor = sandbox["execs"][0]["keeper"]["pid"].as_i64().expect("an exec supervisor");
    let switches = || {
        let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap();
        status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut before, mut looks) = (switches(), 0);
    // A timer that comes again and again would never let this end.
    wait_until("it is at rest", || {
        let now = switches();
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
        looks == 20
    });
    assert_eq!(api.out(&guest, "echo other"), "other\n");
    assert_eq!(switches(), before);
}

/// Daemons in sessions of their own, a double fork, and three levels of shells: six processes `sleep N`, of which the command waits for
/// one.
fn tree(sleep: &str) -> String {
    let daemons = format!("{sleep} & setsid {sleep} & nohup {sleep} >/dev/null 2>&1 &");
    format!("{daemons} (setsid sh -c '{sleep} & {sleep}; true' &); sh -c 'sh -c \"{sleep}; true\"; true'")
}

/// <https://github.com/e2b-dev/E2B/issues/1034>
///
/// spec: 13.9.3, 36.5
#[test]
fn e2b_1034_a_kill_of_a_command_leaves_none_of_its_six_processes() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let kill = |pid: u64| {
        let message = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" });
        api.call(&guest, "/process.Process/SendSignal", &message).0
    };
    let mut command = api.start_command(&guest, &tree("sleep 1034"));
    let pid = command.pid();
    wait_until("all live", || running("sleep 1034") == 6);
    assert_eq!(kill(pid), 200);
    assert_eq!(running("sleep 1034"), 0);
    // The control: a signal to the first process alone is what the reference sends.
    let mut command = api.start_command(&guest, &tree("sleep 1035"));
    let pid = command.pid();
    wait_until("all live", || running("sleep 1035") == 6);
    api.out(&guest, &format!("kill -9 {pid}"));
    assert_eq!(command.finish().1["status"], "signal: killed");
    assert_eq!(running("sleep 1035"), 6);
    assert_eq!(kill(pid), 200);
    assert_eq!(running("sleep 1035"), 0);
}
