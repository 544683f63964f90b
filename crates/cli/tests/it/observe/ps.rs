//! `penfold ps`: what it lists, and in which forms.

use std::process::Stdio;

use super::output::{array, ids, kill, of, own, shown};
use crate::support::{Running, TestEnv, fresh_id, wait_until};

#[test]
fn what_lives_is_listed_and_what_has_ended_only_on_request() {
    let env = TestEnv::new();
    let mine = format!("of={}", fresh_id());
    let ended = env.detach(["-l", &mine, "--", "sh", "-c", "exit 3"]);
    ended.await_end();
    let web = env.detach(["--name", "web", "-l", "job=17", "-l", &mine, "--", "sleep", "4401"]);
    let both = [&web, &ended];
    assert_eq!(of(&both, &shown(&env, ["ps", "-q"])), [web.id.as_str()]);
    assert_eq!(of(&both, &shown(&env, ["ls", "-aq"])), [web.id.as_str(), &ended.id], "the youngest first");
    // An orphan of another test may be younger.
    let latest = shown(&env, ["ps", "-lq", "--filter", &format!("label={mine}")]);
    assert_eq!(of(&both, &latest), [web.id.as_str()]);
    let found = own(array(&env, ["ps", "-a", "--json"]));
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
    kill(&env, &web);
    assert_eq!(of(&both, &shown(&env, ["ps", "-q"])).len(), 0);
    assert_eq!(own(array(&env, ["ps", "--json"])).len(), 0);
    assert_eq!(own(array(&env, ["ps", "-a", "--json"]))[0]["status"], "killed");
}

/// spec: 8.20
#[test]
fn more_sandboxes_are_listed_than_the_soft_limit_of_descriptors_allows() {
    let env = TestEnv::new();
    let mine = format!("of={}", fresh_id());
    for _ in 0..30 {
        env.detach(["-l", &mine, "--", "true"]).await_end();
    }
    let listed = env.script(&format!("ulimit -Sn 24; $PENFOLD --root $ROOT ps -aq --filter label={mine}"));
    assert_eq!(listed.with_code(0).out().lines().count(), 30);
}

/// spec: 8.17
#[test]
fn json_has_times_that_people_read_and_a_line_for_each_sandbox_on_request() {
    let env = TestEnv::new();
    let mine = format!("of={}", fresh_id());
    let ended = env.detach(["-l", &mine, "--", "true"]);
    ended.await_end();
    let living = env.detach(["-l", &mine, "--ttl", "1h", "--", "sleep", "4406"]);
    let filter = format!("label={mine}");
    let lines = shown(&env, ["ps", "-a", "-f", &filter, "--format", "{{json .}}"]);
    let objects: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, second] = objects.as_slice() else { panic!("{lines}") };
    assert_eq!((&first["id"], &second["id"]), (&living.id.as_str().into(), &ended.id.as_str().into()));
    for (object, name) in [(first, "started_at"), (first, "expires_at"), (second, "ended_at")] {
        let text = object[name].as_str().unwrap();
        let ms = object[format!("{name}_ms")].as_u64().unwrap();
        let told = Running::start(env.command("date").args(["-u", "-d", text, "+%s%3N"])).finish().out();
        assert_eq!(told.trim(), ms.to_string(), "{object}");
    }
    assert!(first["ended_at"].is_null() && second["expires_at"].is_null(), "{lines}");
    let lines = shown(&env, ["inspect", "-f", "{{ json . }}", &living.id, &ended.id]);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.lines().all(|line| line.starts_with('{')), "{lines}");
    kill(&env, &living);
}

#[test]
fn nothing_is_listed_where_nothing_was() {
    let env = TestEnv::new();
    std::fs::remove_dir(env.root()).unwrap();
    assert_eq!(own(array(&env, ["ps", "-a", "--json"])).len(), 0);
    assert!(shown(&env, ["ps"]).starts_with("ID "), "the headings");
    assert!(!env.root().try_exists().unwrap(), "`ps` does not create the state root");
}

/// They would turn what stands beside them, or hide in it: "Trojan source", <https://www.unicode.org/reports/tr36/>.
/// spec: 8.2
#[test]
fn format_characters_of_strangers_are_escaped_wherever_they_are_shown() {
    let env = TestEnv::new();
    let odd = "sleep\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}4403";
    let script = format!("exec -a '{odd}' sleep 4403");
    let sandbox = env.detach(["bash", "-c", &script]);
    wait_until("it sleeps", || env.find("sleep").len() == 1);
    let id = sandbox.id.as_str();
    for words in [
        &["ps", "--no-trunc"][..],
        &["ps", "--format", "{{.Command}}"],
        &["tree", "--full", id],
        &["status", id],
        &["events", "--no-follow"],
        &["reap", "-n", "--env", &format!("PENFOLD_SANDBOX={id}")],
    ] {
        let text = shown(&env, words.iter().copied());
        assert!(text.contains("sleep\\u{202e}\\u{2066}\\u{200b}\\u{feff}\\u{2028}4403"), "{words:?}: {text}");
        assert!(
            !text.contains(['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{2028}']),
            "{words:?}: {text}"
        );
    }
    let told = env.run(["bash", "-c", &format!("(exec -a '{odd}' sleep 4404) & :")]).err();
    assert!(!told.contains('\u{202e}'), "{told}");
    kill(&env, &sandbox);
    let report = shown(&env, ["report", id]);
    assert!(!report.contains('\u{202e}'), "{report}");
}

#[test]
fn a_foreground_sandbox_is_listed_while_it_runs() {
    let env = TestEnv::new();
    let launcher = env.begin(["run", "--name", "fore", "--", "sleep", "4402"]);
    let listed = || shown(&env, ["ps", "--format", "{{.Name}} {{.State}}"]);
    wait_until("it is listed", || listed().lines().any(|line| line == "fore running"));
    assert!(launcher.is_alive());
    drop(launcher);
    wait_until("it is no longer listed", || own(array(&env, ["ps", "-a", "--json"])).is_empty());
}

#[test]
fn filters_narrow_the_list() {
    let env = TestEnv::new();
    let one = env.detach(["--name", "one", "-l", "job=1", "-l", "os=linux", "--", "sleep", "4403"]);
    let two = env.detach(["--name", "two", "-l", "job=2", "-l", "os=linux", "--", "sleep", "4403"]);
    let ended = env.detach(["-l", "job=1", "--", "true"]);
    ended.await_end();
    let listed = |filters: &[&str]| {
        let words = filters.iter().flat_map(|filter| ["--filter", filter]);
        of(&[&one, &two, &ended], &shown(&env, ["ps", "-q"].into_iter().chain(words)))
    };
    assert_eq!(listed(&["label=job=1"]), [one.id.as_str()]);
    assert_eq!(listed(&["label=os"]), [two.id.as_str(), one.id.as_str()]);
    assert_eq!(listed(&["label=os=linux", "label=job=2"]), [two.id.as_str()]);
    assert_eq!(listed(&["name=one", "name=two"]).len(), 2);
    assert_eq!(listed(&["name=one", "label=job=2"]).len(), 0);
    assert_eq!(listed(&["name=on"]).len(), 0, "a filter names a whole name");
    assert_eq!(listed(&[&format!("id={}", &two.id[..8])]), [two.id.as_str()]);
    assert_eq!(listed(&["status=exited"]), [ended.id.as_str()], "without -a");
    for bad in ["name", "status=dead", "colour=red", "id="] {
        assert_eq!(env.call(["ps", "--filter", bad]).code(), Some(2), "{bad}");
    }
}

#[test]
fn templates_are_filled_and_unknown_fields_are_named() {
    let env = TestEnv::new();
    let web = env.detach(["--name", "web", "--", "sleep", "4404"]);
    let line = shown(&env, ["ps", "--format", "{{.ID}}\\t{{ .Names }} {{.Command}}!"]);
    let lines = |text: &str, line: &str| text.lines().filter(|found| *found == line).count();
    assert_eq!(lines(&line, &format!("{}\tweb sleep 4404!", web.id)), 1, "{line}");
    let table = shown(&env, ["ps", "--format", "table {{.ID}}\\t{{.State}}"]);
    assert!(table.starts_with("ID             STATE\n"), "{table}");
    assert_eq!(lines(&table, &format!("{}   running", web.id)), 1, "{table}");
    assert_eq!(own(array(&env, ["ps", "--format", "json"])).len(), 1);
    let refused = env.call(["ps", "--format", "{{.Image}}"]).with_code(2);
    assert!(refused.err().contains("{{.RunningFor}}"), "{}", refused.err());
}

#[test]
fn commands_of_strangers_move_no_cursor_and_are_not_cut_short_in_a_pipe() {
    let env = TestEnv::new();
    let long = "x".repeat(300);
    let script = format!(": '\u{1b}[2J\n{long}'; sleep 4405");
    let web = env.detach(["--", "sh", "-c", &script]);
    let table = shown(&env, ["ps"]);
    let line = table.lines().find(|line| line.starts_with(&web.id)).unwrap();
    assert!(line.contains(&long), "one line, {table:?}");
    assert!(!table.contains('\u{1b}') && table.contains(&long), "{table:?}");
}

#[test]
fn watching_ends_with_its_reader() {
    let env = TestEnv::new();
    let mut command = env.penfold(["ps", "--watch"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let reader = child.stdout.take().unwrap();
    let watch = Running::of(child);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut line).unwrap();
    assert!(line.starts_with("ID"), "{line}");
    // The reader is closed by now.
    watch.process().await_end();
}

#[test]
fn a_root_that_is_not_ours_is_an_error_and_no_empty_list() {
    let env = TestEnv::new();
    std::fs::remove_dir(env.root()).unwrap();
    std::os::unix::fs::symlink("/tmp", env.root()).unwrap();
    let refused = env.call(["ps"]);
    assert_ne!(refused.code(), Some(0));
    assert!(refused.out.is_empty() && refused.err().contains("root"), "{}", refused.err());
}
