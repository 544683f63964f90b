//! The members that each selector finds, on real processes.

use penfold_testkit::wait_until;
use std::collections::HashSet;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::support::{Handle, Started};
use penfold_process::{Pid, ProcFs, ProcessId};
use penfold_teardown::{Marker, Search, Selector};

/// Starts a shell with children. Its script prints `NAME PID` lines and then closes its output.
fn shell(script: &str, setup: impl FnOnce(&mut Command) -> &mut Command) -> (Started, Vec<(String, Handle)>) {
    let mut command = Command::new("sh");
    let script = format!("{script}; exec >&-; wait");
    let mut shell = Started(setup(command.args(["-c", &script]).stdout(Stdio::piped())).spawn().unwrap());
    let mut said = String::new();
    shell.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let members = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, pid)| (name.to_owned(), Handle::open(pid.parse().unwrap())))
        .collect();
    (shell, members)
}

fn find(search: &mut Search, proc: &mut ProcFs) -> HashSet<Pid> {
    let mut members = Vec::new();
    assert!(search.find(proc, &mut members).unwrap().completeness.is_complete());
    let starts: Vec<_> = members.iter().map(penfold_process::Stat::id).collect();
    assert!(starts.is_sorted(), "parents come before their children");
    members.into_iter().map(|stat| stat.pid).collect()
}

fn search(selector: Selector) -> (ProcFs, Search) {
    let mut proc = ProcFs::open().unwrap();
    let search = Search::new(selector, &mut proc).unwrap();
    (proc, search)
}

fn id_of(started: &Started) -> penfold_process::ProcessId {
    ProcFs::open().unwrap().stat(started.pid()).unwrap().unwrap().id()
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

#[test]
fn a_stranger_in_the_group_of_the_root_is_none_of_its_tree() {
    let (tree, members) = shell("sleep 3501 >&- & echo child $!", |command| command.process_group(0));
    let stranger = Started(Command::new("sleep").arg("3502").process_group(raw(tree.pid())).spawn().unwrap());
    let (mut proc, mut search) = search(Selector::Process(id_of(&tree)));
    for look in 1..=3 {
        let found = find(&mut search, &mut proc);
        assert!(found.contains(&tree.pid()) && found.contains(&members[0].1.pid()), "look {look}");
        assert!(!found.contains(&stranger.pid()), "look {look}");
    }
    let (mut proc, mut search) = self::search(Selector::Group(raw(tree.pid())));
    assert!(find(&mut search, &mut proc).contains(&stranger.pid()), "asked for the group, it is meant");
}

#[test]
fn a_member_stays_one_when_its_parent_dies() {
    let (mut tree, members) = shell("sleep 3511 >&- & echo child $!", |command| command);
    let child = members[0].1.pid();
    let (mut proc, mut search) = search(Selector::Process(id_of(&tree)));
    assert!(find(&mut search, &mut proc).contains(&child));
    tree.0.kill().unwrap();
    tree.0.wait().unwrap();
    assert_eq!(find(&mut search, &mut proc), HashSet::from([child]));
}

#[test]
fn who_is_in_a_session_descends_from_its_leader() {
    // The child is orphaned before the first look: its parent ends at once.
    let (tree, members) = shell("(sleep 3521 >&- & echo orphan $!)", |command| {
        let program = std::mem::replace(command, Command::new("setsid"));
        command.arg(program.get_program()).args(program.get_args()).stdout(Stdio::piped())
    });
    let orphan = members[0].1.pid();
    let (mut proc, mut search) = search(Selector::Process(id_of(&tree)));
    assert!(find(&mut search, &mut proc).contains(&orphan));
}

#[test]
fn carriers_of_a_variable_and_their_children_belong() {
    let value = format!("search-{}", std::process::id());
    let script = "env -u COOKIE sleep 3531 >&- & echo child $!";
    let (tree, members) = shell(script, |command| command.env("COOKIE", &value));
    let child = &members[0].1;
    wait_until("it is env no more", || child.name() == "sleep");
    let other =
        Started(Command::new("sleep").arg("3532").env("COOKIE", format!("{value}x")).spawn().unwrap());
    let selector = Selector::Environment { key: b"COOKIE".to_vec(), value: value.into_bytes() };
    let (mut proc, mut search) = search(selector);
    let found = find(&mut search, &mut proc);
    assert!(found.contains(&tree.pid()) && found.contains(&child.pid()));
    assert!(!found.contains(&other.pid()));
}

#[test]
fn a_marker_counts_in_any_of_its_parts_and_only_as_a_whole_part() {
    let id = format!("{:012x}", std::process::id());
    let start = |value: String| {
        Started(Command::new("sleep").arg("3541").env("PENFOLD_SANDBOX", value).spawn().unwrap())
    };
    let outer = start(format!("{id}:aaaaaaaaaaaa"));
    let inner = start(format!("aaaaaaaaaaaa:{id}"));
    let others = [start(format!("{id}0")), start(format!("0{id}:")), start(String::new())];
    wait_until("all have their environment", || {
        [&outer, &inner].into_iter().chain(&others).all(|child| is_marked(child.pid()))
    });
    let (mut proc, mut search) = search(Selector::Marker(Marker::named(id)));
    assert_eq!(find(&mut search, &mut proc), HashSet::from([outer.pid(), inner.pid()]));
}

/// spec: 4.2
#[test]
fn a_marker_counts_with_proof_only() {
    let id = format!("{:012x}", u64::from(std::process::id()) + (1 << 40));
    // The parent, this process, does not adopt orphans.
    let copy = Started(Command::new("sleep").arg("3542").env("PENFOLD_SANDBOX", &id).spawn().unwrap());
    wait_until("it has its environment", || is_marked(copy.pid()));
    let start = ProcFs::open().unwrap().stat(copy.pid()).unwrap().unwrap();
    let (session, since) = (start.session, start.start);
    let user = rustix::process::geteuid().as_raw();
    let named = Marker::named(&id);
    let recorded = Marker { suffices: false, session: Some(session), since: Some(since), ..named.clone() };
    let later = penfold_process::StartTime(since.0 + 1);
    let above = ProcFs::open().unwrap().ancestors(&start).unwrap();
    let gone = above.iter().map(|id| ProcessId { start: later, ..*id }).collect();
    let away = Marker { session: Some(session + 1), home: Some("/elsewhere".to_owned()), ..recorded.clone() };
    let cases = [
        ("named", named.clone(), true),
        ("recorded session", recorded.clone(), true),
        ("nothing", Marker { suffices: false, ..named.clone() }, false),
        ("another session", Marker { session: Some(session + 1), ..recorded.clone() }, false),
        ("above it", Marker { ancestors: above.clone(), session: None, ..recorded.clone() }, true),
        ("above it, ended", Marker { ancestors: gone, session: None, ..recorded.clone() }, false),
        ("above it, another cgroup", Marker { ancestors: above, ..away }, false),
        ("older", Marker { since: Some(later), ..recorded }, false),
        ("older, named", Marker { since: Some(later), ..named.clone() }, false),
        ("another user, named", Marker { user: Some(user + 1), ..named }, false),
    ];
    for (what, marker, is_member) in cases {
        let is_believed = marker.user.is_none() && marker.since.is_none_or(|since| since <= start.start);
        let (mut proc, mut search) = search(Selector::Marker(marker));
        assert_eq!(find(&mut search, &mut proc).contains(&copy.pid()), is_member, "{what}");
        assert_eq!(search.unproven().contains(&copy.pid()), is_believed && !is_member, "{what}");
    }
}

/// During an exec the name is new and the environment is not there yet.
fn is_marked(pid: Pid) -> bool {
    let environ = std::fs::read(format!("/proc/{}/environ", raw(pid))).unwrap_or_default();
    environ.split(|&byte| byte == 0).any(|entry| entry.starts_with(b"PENFOLD_SANDBOX="))
}

#[test]
fn what_this_process_runs_under_is_left_out() {
    let own = rustix::process::getpid();
    let id = ProcFs::open().unwrap().stat(own).unwrap().unwrap().id();
    let (mut proc, mut search) = search(Selector::Process(id));
    let found = find(&mut search, &mut proc);
    assert!(!found.contains(&own) && !found.contains(&Pid::INIT));
    assert!(search.left_out().iter().any(|stat| stat.pid == own));
    assert!(search.spares(own) && search.spares(Pid::INIT));
}
