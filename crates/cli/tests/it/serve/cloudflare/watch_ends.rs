//! How a watch ends, and how many there can be.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::watch::{watch, watch_new};
use super::{Api, Events};
use crate::support::wait_until;

/// The inotify descriptors of the server.
fn descriptors(api: &Api) -> usize {
    let fds = format!("/proc/{}/fd", api.server.running.pid());
    let entries = fs::read_dir(fds).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.as_os_str() == "anon_inode:inotify").count()
}

/// The threads of the server that serve one stream each.
fn writers(api: &Api) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", api.server.running.pid())).unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| ["body\n", "wait\n", "stream\n"].contains(&name.as_str())).count()
}

/// The last event, which must have this type, and its text.
#[track_caller]
fn last(events: Events, kind: &str, field: &str) -> String {
    let rest = events.rest();
    let last = rest.last().expect("an event");
    assert_eq!(last["type"], kind, "{rest:?}");
    last[field].as_str().unwrap().to_owned()
}

/// spec: 15.23
#[test]
fn a_client_that_goes_away_ends_its_watch_and_no_watch_has_a_thread() {
    let api = Api::start();
    // It has a watch of its own.
    api.server.await_ready();
    let (threads, before) = (writers(&api), descriptors(&api));
    let (top, first) = watch_new(&api, "top", &json!({}));
    let others: Vec<Events> = (0..10).map(|_| watch(&api, &top, &json!({}))).collect();
    // A descriptor and its duplicate for each.
    assert_eq!((descriptors(&api), writers(&api)), (before + 22, threads));
    drop(first);
    wait_until("the descriptors of the first are closed", || descriptors(&api) == before + 20);
    drop(others);
    wait_until("all descriptors are closed", || descriptors(&api) == before);
}

/// spec: 15.23
#[test]
fn a_top_that_is_removed_moved_or_replaced_stops_the_watch() {
    let api = Api::start();
    let stops = |events| {
        assert_eq!(last(events, "stopped", "reason"), "the watched path was removed, moved or replaced");
    };
    let (top, events) = watch_new(&api, "removed", &json!({}));
    fs::write(format!("{top}/a"), "").unwrap();
    fs::remove_file(format!("{top}/a")).unwrap();
    fs::remove_dir(&top).unwrap();
    stops(events);
    let (top, events) = watch_new(&api, "moved", &json!({}));
    fs::rename(&top, api.path("elsewhere")).unwrap();
    fs::create_dir(&top).unwrap();
    stops(events);
    // A shell keeps the directory that is removed.
    let (top, events) = watch_new(&api, "held", &json!({}));
    api.out("s", &format!("cd {top}; rmdir {top}"));
    stops(events);
    // A directory above is moved: that shows at the next change.
    fs::create_dir(api.path("above")).unwrap();
    let (_, events) = watch_new(&api, "above/top", &json!({}));
    fs::rename(api.path("above"), api.path("away")).unwrap();
    fs::write(api.path("away/top/a"), "").unwrap();
    stops(events);
}

/// spec: 15.5, 15.23
#[test]
fn a_server_that_ends_says_so_in_each_watch() {
    let api = Api::start();
    let (_, events) = watch_new(&api, "top", &json!({}));
    api.server.running.signal(Signal::TERM);
    assert!(last(events, "error", "error").contains("the server is ending"));
    api.server.running.finish().with_code(0);
}

/// spec: 15.23
#[test]
fn a_tree_with_too_many_directories_is_an_error_event() {
    let api = Api::start();
    let (top, events) = watch_new(&api, "top", &json!({}));
    for number in 0..=8192 {
        fs::create_dir(format!("{top}/{number}")).unwrap();
    }
    assert!(last(events, "error", "error").contains("more than 8192 directories"));
    let events = api.events("POST", "/api/watch", &json!({ "path": top }));
    assert!(last(events, "error", "error").contains("more than 8192 directories"));
    let error = api.post("/api/watch/check", &json!({ "path": top })).fails(500, "WATCH_START_ERROR");
    assert!(error["message"].as_str().unwrap().contains("more than 8192 directories"), "{error}");
    // What is left out does not count.
    watch(&api, &top, &json!({ "exclude": ["?", "??", "???", "????"] }));
    watch(&api, &top, &json!({ "recursive": false }));
}

/// spec: 15.23
#[test]
fn changes_that_the_kernel_has_lost_are_an_error_event() {
    let api = Api::start();
    let (top, events) = watch_new(&api, "top", &json!({}));
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let most: usize = most.trim().parse().unwrap();
    let server = api.server.running.process();
    server.stop();
    for number in 0..=most {
        fs::write(format!("{top}/{}", number % 100), "").unwrap();
        fs::remove_file(format!("{top}/{}", number % 100)).unwrap();
    }
    api.server.running.signal(Signal::CONT);
    assert!(last(events, "error", "error").contains("changes were lost"));
}

/// spec: 15.4, 15.23
#[test]
fn a_tenant_has_a_number_of_watches_at_most() {
    let api = Api::start();
    // It has a watch of its own.
    api.server.await_ready();
    let (top, first) = watch_new(&api, "top", &json!({}));
    let before = descriptors(&api);
    let others: Vec<Events> = (1..32).map(|_| watch(&api, &top, &json!({}))).collect();
    for route in ["/api/watch", "/api/watch/check"] {
        let error = api.post(route, &json!({ "path": top })).fails(429, "WATCH_START_ERROR");
        assert_eq!(error["message"], "there are as many watches as there can be");
    }
    drop(first);
    wait_until("the first has ended", || descriptors(&api) == before + 2 * 30);
    // Trees that are watched for `check` only make room for others.
    for name in ["a", "b"] {
        let top = api.path(name);
        fs::create_dir(&top).unwrap();
        wait_until("there is room", || api.post("/api/watch/check", &json!({ "path": top })).status == 200);
    }
    watch(&api, &top, &json!({}));
    drop(others);
}
