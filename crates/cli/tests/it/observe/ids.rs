//! Ids, names and `-` on the command line, and the exit codes of an unknown or ambiguous id.

use std::process::Stdio;

use super::output::{array, ids, kill};
use crate::support::{Running, Sandbox, TestEnv, penfold};

/// spec: 5.6
#[test]
fn words_that_mean_none_have_their_code_and_hinder_nobody() {
    let env = TestEnv::new();
    let web = env.detach(["--name", "web", "--", "sleep", "4411"]);
    for word in ["", "nope", "../root", "ffffffffffff", "-x"] {
        let finished = env.call(["inspect", "--", word]);
        assert_eq!(finished.code(), Some(3), "{word:?}: {}", finished.err());
    }
    let finished = env.call(["inspect", "nope", "web"]).with_code(3);
    assert_eq!(finished.json()[0]["id"], web.id.as_str());
    assert!(finished.err().contains("`nope`"), "{}", finished.err());
    env.call(["inspect"]).with_code(2);
}

/// spec: 8.2
#[test]
fn low_codes_of_verbs_that_pass_on_a_code_are_the_commands() {
    let env = TestEnv::new();
    let words = |word: &'static str| [vec!["exec", word, "true"], vec!["attach", word], vec!["wait", word]];
    let refused = |line: &[&str], why: &str| {
        let finished = env.call(line);
        assert_eq!(finished.code(), Some(125), "{line:?}: {}", finished.err());
        assert!(finished.out.is_empty() && finished.err().contains(why), "{line:?}: {}", finished.err());
    };
    for line in words("nope") {
        refused(&line, "`nope`");
    }
    refused(&["wait"], "missing `ID`");
    refused(&["wait", "--bogus"], "`--bogus`");
    let all: Vec<Sandbox> = (0..17).map(|_| env.detach(["--", "true"])).collect();
    let first = |one: &Sandbox| one.id[..1].to_owned();
    for one in &all {
        one.await_end();
    }
    // Of seventeen ids two begin with the same digit.
    let twin = |one: &&Sandbox| all.iter().filter(|other| first(one) == first(other)).count() > 1;
    let digit: &'static str = first(all.iter().find(twin).unwrap()).leak();
    for line in words(digit) {
        refused(&line, " sandboxes: ");
    }
    // Records that cannot be read.
    std::os::unix::fs::symlink(env.root(), env.path("link")).unwrap();
    let line = |words: &[&str]| {
        let mut command = env.command(penfold());
        Running::start(command.arg("--root").arg(env.path("link")).args(words)).finish()
    };
    // A living sandbox is found by its processes and its cgroup all the same.
    let alive = env.detach(["--name", "alive", "--", "sleep", "4415"]);
    for words in [["attach", "twin"], ["wait", "twin"], ["attach", "alive"], ["attach", &alive.id]] {
        let finished = line(&words);
        assert_eq!(finished.code(), Some(125), "{words:?}: {}", finished.err());
        let why = "it is a symbolic link, which is not followed";
        assert!(finished.err().contains(why), "{words:?}: {}", finished.err());
    }
}

/// spec: 5.6
#[test]
fn an_ambiguous_word_lists_what_it_may_mean() {
    let env = TestEnv::new();
    // Of seventeen ids two begin with the same digit.
    let all: Vec<Sandbox> = (0..17).map(|_| env.detach(["--", "sleep", "4412"])).collect();
    let first = |one: &Sandbox| one.id[..1].to_owned();
    let twin =
        all.iter().find(|one| all.iter().filter(|other| first(one) == first(other)).count() > 1).unwrap();
    let finished = env.call(["status", &first(twin)]).with_code(4);
    for one in all.iter().filter(|one| first(one) == first(twin)) {
        assert!(finished.err().contains(&format!("{} (-)", one.id)), "{}", finished.err());
    }
}

#[test]
fn ids_are_read_from_standard_input_and_each_is_taken_once() {
    let env = TestEnv::new();
    let one = env.detach(["--name", "one", "--", "sleep", "4413"]);
    let two = env.detach(["--name", "two", "--", "sleep", "4413"]);
    let mut inspect = Running::start(env.penfold(["inspect", "one", "-"]).stdin(Stdio::piped()));
    inspect.say(&format!("{}\n\n  two one\n", two.id));
    let finished = inspect.finish().with_code(0);
    assert_eq!(ids(finished.json().as_array().unwrap()), [one.id.as_str(), two.id.as_str()]);
    assert_eq!(array(&env, ["inspect", "-"]).len(), 0, "nothing named, nothing shown");
}

/// spec: 5.6
#[test]
fn a_name_is_free_again_and_means_the_newest_that_has_it() {
    let env = TestEnv::new();
    let means = |sandbox: &Sandbox| assert_eq!(ids(&array(&env, ["inspect", "web"])), [sandbox.id.as_str()]);
    let old = env.detach(["--name", "web", "--", "true"]);
    old.await_end();
    means(&old);
    let new = env.detach(["--name", "web", "--", "sleep", "4414"]);
    means(&new);
    kill(&env, &new);
    means(&new);
    // What a name means is what each verb acts on.
    assert_eq!(env.call(["wait", "web"]).with_code(137).out(), "137\n");
    env.detach(["--name", "web", "--", "sh", "-c", "exit 6"]).await_end();
    assert_eq!(env.call(["wait", "web"]).with_code(6).out(), "6\n");
}

/// spec: 5.6
#[test]
fn the_full_uuid_is_accepted_wherever_an_id_is() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "--", "sleep", "4416"]);
    let whole = sandbox.file("intent.json").unwrap()["id"].as_str().unwrap().to_owned();
    assert!(env.call(["inspect", "web"]).with_code(0).out().contains(&whole), "`inspect` prints it");
    let filter = format!("id={whole}");
    assert_eq!(array(&env, ["inspect", &whole])[0]["id"], sandbox.id.as_str());
    assert_eq!(env.call(["ps", "-q", "--filter", &filter]).with_code(0).out(), format!("{}\n", sandbox.id));
    env.call(["exec", &whole, "true"]).with_code(0);
    env.call(["extend", &whole, "1h"]).with_code(0);
    env.call(["logs", &whole]).with_code(0);
    env.call(["tree", &whole]).with_code(0);
    env.call(["status", &whole]).with_code(0);
    let events = env.call(["events", "--no-follow", "--filter", &filter]).with_code(0).out();
    assert!(events.contains(&sandbox.id), "{events}");
    env.call(["stop", &whole]).with_code(0);
    env.call(["wait", &whole]).with_code(143);
    env.call(["report", &whole]).with_code(0);
    env.call(["kill", &whole]).with_code(0);
    env.call(["gc", "-f", "--older-than", "0s", &whole]).with_code(0);
    assert!(!sandbox.record.try_exists().unwrap(), "the record is left");
    env.call(["rm", &whole]).with_code(3);
}
