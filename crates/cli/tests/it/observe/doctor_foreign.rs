//! `penfold doctor --foreign` and `penfold gc --foreign`: what other tools left behind, shown, and ended only when named.

use std::net::TcpListener;

use crate::support_d::{Started, Yard, code, handle, has_ended, json, output, said, until};
use rustix::process::Pid;
use serde_json::Value;

/// Leaves a process behind as a careless tool does: in a session of its own, its parent gone.
fn leave(yard: &Yard, seconds: &str, environment: &[(&str, &str)]) -> Pid {
    let mut command = yard.command("bash");
    command.args(["-c", &format!("(setsid sleep {seconds} &)")]).envs(environment.iter().copied());
    command.current_dir(yard.path("tmp")).stdout(std::process::Stdio::null());
    assert!(command.status().unwrap().success());
    until("it runs", || yard.find(&format!("sleep {seconds}")).len() == 1);
    yard.find(&format!("sleep {seconds}"))[0]
}

fn strays(yard: &Yard) -> Vec<Value> {
    let done = output(&mut yard.penfold(["doctor", "--foreign", "--json"]));
    json(&done)["foreign"]["strays"].as_array().unwrap().clone()
}

fn stray(yard: &Yard, pid: Pid) -> Option<Value> {
    strays(yard).into_iter().find(|stray| stray["pid"] == pid.as_raw_pid())
}

#[test]
fn strays_are_shown_with_what_a_person_needs_and_others_are_not() {
    let yard = Yard::new();
    let mut gone = Started::of(&mut yard.command("true"));
    let dead = gone.pid().as_raw_pid().to_string();
    gone.child.wait().unwrap();
    let alive = std::process::id().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Inherited by all that is started from here on.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let environment = [("VSCODE_PID", dead.as_str()), ("CLAUDECODE", "1"), ("CLAUDE_TOKEN", "hidden")];
    let pid = leave(&yard, "3501", &environment);
    let innocent = Started::of(yard.command("sleep").arg("3502").env("VSCODE_PID", &alive));
    let held = Started::of(yard.command("setsid").args(["sleep", "3503"]).env("CURSOR_PID", &alive));

    let found = stray(&yard, pid).unwrap_or_else(|| panic!("{:?}", strays(&yard)));
    assert_eq!(found["directory"], yard.path("tmp").display().to_string(), "{found}");
    assert_eq!(found["ports"][0]["port"], listener.local_addr().unwrap().port(), "{found}");
    assert_eq!(
        (&found["marks"][0]["key"], &found["marks"][0]["owner"]),
        (&"VSCODE_PID".into(), &"dead".into())
    );
    assert!(found["evidence"].to_string().contains(&format!("process {dead}, which is dead")), "{found}");
    assert!(!found.to_string().contains("hidden"), "no secrets: {found}");
    assert!(stray(&yard, innocent.pid()).is_none() && stray(&yard, held.pid()).is_none());

    let text = output(&mut yard.penfold(["doctor", "--foreign"]));
    assert_eq!(code(&text), 1);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(&format!("penfold gc --foreign {}", pid.as_raw_pid())), "{text}");
    assert!(!has_ended(&handle(pid)), "looking touches nothing");
    assert!(json(&output(&mut yard.penfold(["doctor", "--json"])))["foreign"].is_null());
}

#[test]
fn a_dead_owner_is_enough_and_members_of_sandboxes_are_no_strays() {
    let yard = Yard::new();
    let mut gone = Started::of(&mut yard.command("true"));
    let dead = gone.pid().as_raw_pid().to_string();
    gone.child.wait().unwrap();
    let tmux = format!("/tmp/tmux-0/default,{dead},0");
    let child = Started::of(yard.command("setsid").args(["sleep", "3511"]).env("TMUX", &tmux));
    until("it has a session", || stray(&yard, child.pid()).is_some());
    let run = output(yard.penfold(["run", "-d", "--", "sleep", "3512"]).env("TMUX", &tmux));
    assert_eq!(code(&run), 0, "{}", said(&run));
    until("it runs", || yard.find("sleep 3512").len() == 1);
    let member = yard.find("sleep 3512")[0];
    assert!(
        !strays(&yard)
            .iter()
            .any(|stray| { stray["pid"] == member.as_raw_pid() || stray["name"] == "penfold" })
    );
    let refused = output(&mut yard.penfold(["gc", "--foreign", &member.as_raw_pid().to_string()]));
    assert_eq!(code(&refused), 2, "{}", said(&refused));
    assert_eq!(yard.find("sleep 3512").len(), 1);
}

#[test]
fn only_what_is_named_is_ended() {
    let yard = Yard::new();
    let (one, other) = (leave(&yard, "3521", &[]), leave(&yard, "3522", &[]));
    let (gone, stays) = (handle(one), handle(other));
    let number = one.as_raw_pid().to_string();
    let dry = output(&mut yard.penfold(["gc", "--foreign", "-n", &number]));
    assert!(code(&dry) == 0 && String::from_utf8_lossy(&dry.stdout).contains("sleep 3521"), "{dry:?}");
    assert!(!has_ended(&gone));
    let done = output(&mut yard.penfold(["gc", "--foreign", &number, "1"]));
    assert_eq!(code(&done), 2, "pid 1 is refused: {}", said(&done));
    assert!(has_ended(&gone) && !has_ended(&stays));
    assert_eq!(code(&output(&mut yard.penfold(["gc", "--foreign", &number]))), 0, "already gone counts");
    for words in
        [&["gc", "--foreign"][..], &["gc", "--foreign", "x"], &["gc", "--foreign", "--kind", "name", "7"]]
    {
        assert_eq!(code(&output(&mut yard.penfold(words))), 2, "{words:?}");
    }
    assert!(!has_ended(&stays));
}
