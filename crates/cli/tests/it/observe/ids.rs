//! Ids, names and `-` on the command line, and the codes for words that mean no sandbox or several.

use std::io::Write as _;
use std::process::Stdio;

use crate::inspect_support::{Sandbox, array, ids};
use crate::support_d::{Yard, code, json, output, said};

#[test]
fn words_that_mean_none_have_their_code_and_hinder_nobody() {
    let yard = Yard::new();
    let web = Sandbox::start(&yard, &["--name", "web", "--", "sleep", "4411"]);
    for word in ["", "nope", "../root", "ffffffffffff", "-x"] {
        let done = output(&mut yard.penfold(["inspect", "--", word]));
        assert_eq!(code(&done), 3, "{word:?}: {}", said(&done));
    }
    let done = output(&mut yard.penfold(["inspect", "nope", "web"]));
    assert_eq!(code(&done), 3);
    assert_eq!(json(&done)[0]["id"], web.id.as_str());
    assert!(said(&done).contains("`nope`"), "{}", said(&done));
    assert_eq!(code(&output(&mut yard.penfold(["inspect"]))), 2);
}

#[test]
fn low_codes_of_verbs_that_pass_on_a_code_are_the_commands() {
    let yard = Yard::new();
    let words = |word: &'static str| [vec!["exec", word, "true"], vec!["attach", word], vec!["wait", word]];
    let refused = |line: &[&str], why: &str| {
        let done = output(&mut yard.penfold(line));
        assert_eq!(code(&done), 125, "{line:?}: {}", said(&done));
        assert!(done.stdout.is_empty() && said(&done).contains(why), "{line:?}: {}", said(&done));
    };
    for line in words("nope") {
        refused(&line, "`nope`");
    }
    refused(&["wait"], "missing `ID`");
    refused(&["wait", "--bogus"], "`--bogus`");
    let twins = [(); 2].map(|()| Sandbox::start(&yard, &["--name", "twin", "--", "true"]).wait());
    assert_eq!(twins.len(), 2);
    for line in words("twin") {
        refused(&line, "matches 2 sandboxes");
    }
    // Records that cannot be read.
    let line = |root: &str, words: &[&str]| {
        let mut command = yard.command(env!("CARGO_BIN_EXE_penfold"));
        output(command.arg("--root").arg(yard.path(root)).args(words))
    };
    std::os::unix::fs::symlink(yard.path("root"), yard.path("link")).unwrap();
    // What lives is found by what it left all the same.
    let alive = Sandbox::start(&yard, &["--name", "alive", "--", "sleep", "4415"]);
    for words in [["attach", "twin"], ["wait", "twin"], ["attach", "alive"], ["attach", &alive.id]] {
        let done = line("link", &words);
        assert_eq!(code(&done), 125, "{words:?}: {}", said(&done));
        let why = "it is a symbolic link, which is not followed";
        assert!(said(&done).contains(why), "{words:?}: {}", said(&done));
    }
}

#[test]
fn an_ambiguous_word_lists_what_it_may_mean() {
    let yard = Yard::new();
    // Of seventeen ids two begin with the same digit.
    let all: Vec<Sandbox> = (0..17).map(|_| Sandbox::start(&yard, &["--", "sleep", "4412"])).collect();
    let first = |one: &Sandbox| one.id[..1].to_owned();
    let twin =
        all.iter().find(|one| all.iter().filter(|other| first(one) == first(other)).count() > 1).unwrap();
    let done = output(&mut yard.penfold(["status", &first(twin)]));
    assert_eq!(code(&done), 4);
    for one in all.iter().filter(|one| first(one) == first(twin)) {
        assert!(said(&done).contains(&format!("{} (-)", one.id)), "{}", said(&done));
    }
}

#[test]
fn ids_are_read_from_standard_input_and_each_is_taken_once() {
    let yard = Yard::new();
    let (one, two) = (
        Sandbox::start(&yard, &["--name", "one", "--", "sleep", "4413"]),
        Sandbox::start(&yard, &["--name", "two", "--", "sleep", "4413"]),
    );
    let mut child = yard
        .penfold(["inspect", "one", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    write!(child.stdin.take().unwrap(), "{}\n\n  two one\n", two.id).unwrap();
    let done = child.wait_with_output().unwrap();
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert_eq!(ids(json(&done).as_array().unwrap()), [one.id.as_str(), two.id.as_str()]);
    assert_eq!(array(&yard, ["inspect", "-"]).len(), 0, "nothing named, nothing shown");
}

#[test]
fn a_name_is_free_again_and_means_the_one_that_lives() {
    let yard = Yard::new();
    let old = Sandbox::start(&yard, &["--name", "web", "--", "true"]);
    old.wait();
    assert_eq!(ids(&array(&yard, ["inspect", "web"])), [old.id.as_str()]);
    let new = Sandbox::start(&yard, &["--name", "web", "--", "sleep", "4414"]);
    assert_eq!(ids(&array(&yard, ["inspect", "web"])), [new.id.as_str()]);
    new.kill();
    assert_eq!(code(&output(&mut yard.penfold(["inspect", "web"]))), 4, "which of the two?");
}
