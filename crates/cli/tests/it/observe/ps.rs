//! `penfold ps`: what it lists, and in which forms.

use crate::inspect_support::{Sandbox, array, ids, of, own, shown};
use crate::support_d::{Started, Yard, code, output, said, until};

#[test]
fn what_lives_is_listed_and_what_has_ended_only_on_request() {
    let yard = Yard::new();
    let mine = format!("of={}", crate::support_d::fresh_id());
    let ended = Sandbox::start(&yard, &["-l", &mine, "--", "sh", "-c", "exit 3"]);
    ended.wait();
    let web = Sandbox::start(&yard, &["--name", "web", "-l", "job=17", "-l", &mine, "--", "sleep", "4401"]);
    let both = [&web, &ended];
    assert_eq!(of(&both, &shown(&yard, ["ps", "-q"])), [web.id.as_str()]);
    assert_eq!(of(&both, &shown(&yard, ["ls", "-aq"])), [web.id.as_str(), &ended.id], "the youngest first");
    // An orphan of another test may be younger.
    let latest = shown(&yard, ["ps", "-lq", "--filter", &format!("label={mine}")]);
    assert_eq!(of(&both, &latest), [web.id.as_str()]);
    let found = own(array(&yard, ["ps", "-a", "--json"]));
    assert_eq!(ids(&found), [web.id.as_str(), ended.id.as_str()]);
    let (running, exited) = (&found[0], &found[1]);
    assert_eq!(
        (&running["schema"], &running["status"], &running["name"]),
        (&1.into(), &"running".into(), &"web".into())
    );
    assert_eq!((&running["detached"], &running["labels"]["job"]), (&true.into(), &"17".into()));
    assert_eq!(
        (&exited["status"], &exited["exit"]["code"], &exited["cause"]),
        (&"exited".into(), &3.into(), &"exit".into())
    );
    web.kill();
    assert_eq!(of(&both, &shown(&yard, ["ps", "-q"])).len(), 0);
    assert_eq!(own(array(&yard, ["ps", "--json"])).len(), 0);
    assert_eq!(own(array(&yard, ["ps", "-a", "--json"]))[0]["status"], "killed");
}

#[test]
fn nothing_is_listed_where_nothing_was() {
    let yard = Yard::new();
    assert_eq!(own(array(&yard, ["ps", "-a", "--json"])).len(), 0);
    assert!(shown(&yard, ["ps"]).starts_with("ID "), "the headings");
    assert!(!yard.path("root").try_exists().unwrap(), "looking makes nothing");
}

#[test]
fn a_foreground_sandbox_is_listed_while_it_runs() {
    let yard = Yard::new();
    let mut front = Started::of(&mut yard.penfold(["run", "--name", "fore", "--", "sleep", "4402"]));
    let state = || shown(&yard, ["ps", "--format", "{{.Name}} {{.State}}"]);
    until("it is listed", || state().lines().any(|line| line == "fore running"));
    assert!(front.is_alive());
    drop(front);
    until("it is gone", || own(array(&yard, ["ps", "-a", "--json"])).is_empty());
}

#[test]
fn filters_narrow_the_list() {
    let yard = Yard::new();
    let one =
        Sandbox::start(&yard, &["--name", "one", "-l", "job=1", "-l", "os=linux", "--", "sleep", "4403"]);
    let two =
        Sandbox::start(&yard, &["--name", "two", "-l", "job=2", "-l", "os=linux", "--", "sleep", "4403"]);
    let ended = Sandbox::start(&yard, &["-l", "job=1", "--", "true"]);
    ended.wait();
    let listed = |filters: &[&str]| {
        let words = filters.iter().flat_map(|filter| ["--filter", filter]);
        of(&[&one, &two, &ended], &shown(&yard, ["ps", "-q"].into_iter().chain(words)))
    };
    assert_eq!(listed(&["label=job=1"]), [one.id.as_str()]);
    assert_eq!(listed(&["label=os"]), [two.id.as_str(), one.id.as_str()]);
    assert_eq!(listed(&["label=os=linux", "label=job=2"]), [two.id.as_str()]);
    assert_eq!(listed(&["name=one", "name=two"]).len(), 2);
    assert_eq!(listed(&["name=one", "label=job=2"]).len(), 0);
    assert_eq!(listed(&["name=on"]).len(), 0, "a name is a whole one");
    assert_eq!(listed(&[&format!("id={}", &two.id[..8])]), [two.id.as_str()]);
    assert_eq!(listed(&["status=exited"]), [ended.id.as_str()], "without -a");
    for bad in ["name", "status=dead", "colour=red", "id="] {
        let refused = output(&mut yard.penfold(["ps", "--filter", bad]));
        assert_eq!(code(&refused), 2, "{bad}");
    }
}

#[test]
fn templates_are_filled_and_unknown_fields_are_named() {
    let yard = Yard::new();
    let web = Sandbox::start(&yard, &["--name", "web", "--", "sleep", "4404"]);
    let line = shown(&yard, ["ps", "--format", "{{.ID}}\\t{{ .Names }} {{.Command}}!"]);
    let lines = |text: &str, line: &str| text.lines().filter(|found| *found == line).count();
    assert_eq!(lines(&line, &format!("{}\tweb sleep 4404!", web.id)), 1, "{line}");
    let table = shown(&yard, ["ps", "--format", "table {{.ID}}\\t{{.State}}"]);
    assert!(table.starts_with("ID             STATE\n"), "{table}");
    assert_eq!(lines(&table, &format!("{}   running", web.id)), 1, "{table}");
    assert_eq!(own(array(&yard, ["ps", "--format", "json"])).len(), 1);
    let refused = output(&mut yard.penfold(["ps", "--format", "{{.Image}}"]));
    assert_eq!(code(&refused), 2);
    assert!(said(&refused).contains("{{.RunningFor}}"), "{}", said(&refused));
}

#[test]
fn commands_of_strangers_move_no_cursor_and_are_not_cut_short_in_a_pipe() {
    let yard = Yard::new();
    let long = "x".repeat(300);
    let script = format!(": '\u{1b}[2J\n{long}'; sleep 4405");
    let web = Sandbox::start(&yard, &["--", "sh", "-c", &script]);
    let table = shown(&yard, ["ps"]);
    let line = table.lines().find(|line| line.starts_with(&web.id)).unwrap();
    assert!(line.contains(&long), "one line, {table:?}");
    assert!(!table.contains('\u{1b}') && table.contains(&long), "{table:?}");
}

#[test]
fn watching_ends_with_its_reader() {
    let yard = Yard::new();
    let mut command = yard.penfold(["ps", "--watch"]);
    let mut watch = Started::of(command.stdout(std::process::Stdio::piped()));
    let reader = watch.child.stdout.take().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut line).unwrap();
    assert!(line.starts_with("ID"), "{line}");
    until("it has ended", || !watch.is_alive());
}

#[test]
fn a_root_that_is_not_ours_is_an_error_and_no_empty_list() {
    let yard = Yard::new();
    std::os::unix::fs::symlink("/tmp", yard.path("root")).unwrap();
    let refused = output(&mut yard.penfold(["ps"]));
    assert_ne!(code(&refused), 0);
    assert!(refused.stdout.is_empty() && said(&refused).contains("root"), "{}", said(&refused));
}
