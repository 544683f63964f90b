//! From ids and names to sandboxes: with whole records, damaged ones, and none.

use crate::view_support::{Alive, TestEnv, listen, remove, scribble};
use penfold_control::ResolveError;
use penfold_state::{Id, names};
use penfold_testkit::skip;
use rustix::fs::inotify;

fn id_of(env: &TestEnv, word: &str) -> Result<String, ResolveError> {
    env.resolver().resolve(word).map(|known| known.id)
}

fn is_unknown(env: &TestEnv, word: &str) -> bool {
    matches!(id_of(env, word), Err(ResolveError::NotFound { .. }))
}

fn candidates(env: &TestEnv, word: &str) -> Vec<String> {
    match id_of(env, word) {
        Err(ResolveError::Ambiguous { candidates, .. }) => candidates.into_iter().map(|one| one.id).collect(),
        other => panic!("`{word}` is not ambiguous: {other:?}"),
    }
}

/// Makes an id with this prefix.
fn id_with(prefix: &str) -> Id {
    let digits = Id::new().unwrap().short();
    let text = format!("01900000-0000-7000-8000-{prefix}{}", &digits[prefix.len()..]);
    serde_json::from_str(&format!("\"{text}\"")).unwrap()
}

/// spec: 5.6
#[test]
fn the_empty_word_and_what_is_no_word_match_nothing() {
    let env = TestEnv::new();
    let intent = env.intent(Some("web"));
    let _record = env.reserve(&intent);
    for word in ["", " ", ".", "..", "-", "*", "/", "../root", "a/b", "web/", "web\n", "\0", "é", "WEB"] {
        assert!(is_unknown(&env, word), "{word:?}");
    }
    let path = format!("../sandboxes/{}", intent.id);
    assert!(is_unknown(&env, &path));
}

/// spec: 5.6
#[test]
fn an_id_its_unique_beginning_and_a_name_mean_the_sandbox() {
    let env = TestEnv::new();
    let mut one = env.intent(Some("web"));
    let mut two = env.intent(None);
    (one.id, two.id) = (id_with("aaaa1"), id_with("aaaa2"));
    let (_one, _two) = (env.reserve(&one), env.reserve(&two));
    let _name = names::take_name(&env.root(), "web", &one.id).unwrap();
    for word in [one.id.short().as_str(), "aaaa1", "web"] {
        assert_eq!(id_of(&env, word).unwrap(), one.id.short(), "{word}");
    }
    assert_eq!(id_of(&env, "aaaa2").unwrap(), two.id.short());
    assert_eq!(candidates(&env, "aaaa"), [one.id.short(), two.id.short()]);
    assert!(is_unknown(&env, "aaaa3"));
    let said = id_of(&env, "aaaa").unwrap_err().to_string();
    assert!(said.contains(&format!("{} (web), {} (-)", one.id, two.id)), "{said}");
}

/// spec: 5.6
#[test]
fn a_name_wins_over_a_beginning() {
    let env = TestEnv::new();
    let mut named = env.intent(Some("cafe"));
    let mut other = env.intent(None);
    (named.id, other.id) = (id_with("0001"), id_with("cafe"));
    let (record, _other) = (env.reserve(&named), env.reserve(&other));
    let name = names::take_name(&env.root(), "cafe", &named.id).unwrap();
    assert_eq!(id_of(&env, "cafe").unwrap(), named.id.short());
    // The same without the file of the name.
    remove(&env.root().join("names"));
    assert_eq!(id_of(&env, "cafe").unwrap(), named.id.short());
    // The same once it has ended.
    drop(name);
    env.close(record);
    remove(&env.record(&named.id.short()));
    env.end(&named, r#"{"code":0}"#, "exit");
    assert_eq!(id_of(&env, "cafe").unwrap(), named.id.short());
}

/// spec: 5.6
#[test]
fn a_name_means_the_newest_and_one_that_lives_before_those_that_have_ended() {
    let env = TestEnv::new();
    let [mut old, mut new, mut orphan] = [(); 3].map(|()| env.intent(Some("job-1")));
    (old.made_at_ms, new.made_at_ms, orphan.made_at_ms) = (1000, 3000, 2000);
    env.end(&new, r#"{"code":0}"#, "exit");
    assert_eq!(id_of(&env, "job-1").unwrap(), new.id.short());
    env.end(&old, r#"{"code":0}"#, "exit");
    assert_eq!(id_of(&env, "job-1").unwrap(), new.id.short());
    let _record = env.reserve(&orphan);
    assert_eq!(id_of(&env, "job-1").unwrap(), orphan.id.short());
    let ended = env.resolver().ended_with_name("job-1").unwrap();
    assert_eq!(ended.iter().map(|known| &known.id).collect::<Vec<_>>(), [&new.id.short(), &old.id.short()]);
    assert!(env.resolver().ended_with_name("job").unwrap().is_empty());
}

/// spec: 5.6
#[test]
fn the_full_uuid_of_a_record_means_its_sandbox_and_no_other_with_the_same_digits_at_the_end() {
    let env = TestEnv::new();
    let mut intent = env.intent(Some("web"));
    intent.id = id_with("aaaa1");
    let _record = env.reserve(&intent);
    let whole = serde_json::to_value(intent.id).unwrap();
    let whole = whole.as_str().unwrap();
    assert_eq!(id_of(&env, whole).unwrap(), intent.id.short());
    assert_eq!(id_of(&env, &whole.to_uppercase()).unwrap(), intent.id.short());
    assert!(is_unknown(&env, &whole.replacen('0', "1", 1)));
    assert!(is_unknown(&env, &whole.replace('-', "")));
    // A name may look like an id.
    let named = env.intent(Some("01900000-0000-7000-8000-bbbbbbbbbbbb"));
    let _named = env.reserve(&named);
    assert_eq!(id_of(&env, "01900000-0000-7000-8000-bbbbbbbbbbbb").unwrap(), named.id.short());
}

/// spec: 5.6
#[test]
fn a_name_that_another_sandbox_claims_is_not_believed() {
    let env = TestEnv::new();
    let (web, thief) = (env.intent(Some("web")), env.intent(Some("other")));
    let (_web, _thief) = (env.reserve(&web), env.reserve(&thief));
    let _forged = names::take_name(&env.root(), "web", &thief.id).unwrap();
    assert_eq!(id_of(&env, "web").unwrap(), web.id.short());
    scribble(&env.root().join("names/web"), b"../../../etc");
    assert_eq!(id_of(&env, "web").unwrap(), web.id.short());
}

#[test]
fn damaged_neighbours_hide_nobody() {
    let env = TestEnv::new();
    let web = env.intent(Some("web"));
    let _record = env.reserve(&web);
    for (number, text) in [&b""[..], b"{", b"null", b"{\"schema\":9}"].iter().enumerate() {
        let id = format!("ffffffffff{number:02}");
        std::fs::create_dir(env.record(&id)).unwrap();
        scribble(&env.record(&id).join("intent.json"), text);
        assert_eq!(id_of(&env, &id).unwrap(), id);
    }
    std::os::unix::fs::symlink("/etc", env.record("eeeeeeeeeeee")).unwrap();
    assert_eq!(id_of(&env, "web").unwrap(), web.id.short());
    let known = env.resolver().resolve("eeeeeeeeeeee").unwrap();
    assert!(known.record.is_none() && !known.damage.is_empty());
}

/// spec: 5.6
#[test]
fn a_sandbox_without_a_record_is_found_by_its_leaf() {
    let env = TestEnv::new();
    let mut intent = env.intent(Some("lost-web"));
    let Some(mut alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
    assert!(alive.is_alive());
    let id = intent.id.short();
    for word in [id.as_str(), &id[..11], "lost-web"] {
        let known = env.resolver().resolve(word).unwrap();
        assert_eq!((&known.id, known.name.as_deref()), (&id, Some("lost-web")), "{word}");
        assert!(known.claimed && known.record.is_none() && known.leaf == intent.leaf);
        assert!(known.generation().is_some());
    }
    // In another state root, the sandbox is unknown.
    let other = TestEnv::new();
    assert!(is_unknown(&other, &id) && is_unknown(&other, "lost-web"));
}

#[test]
fn a_damaged_record_keeps_its_name_by_its_leaf() {
    let env = TestEnv::new();
    let mut intent = env.intent(Some("scribbled"));
    let Some(_alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
    env.abandon(&intent);
    scribble(&env.record(&intent.id.short()).join("intent.json"), b"scribble");
    let known = env.resolver().resolve("scribbled").unwrap();
    assert_eq!(known.id, intent.id.short());
    assert!(known.record.is_some() && known.leaf == intent.leaf && !known.damage.is_empty());
}

/// spec: 5.6
#[test]
fn a_sandbox_without_a_record_is_found_by_the_socket_of_its_supervisor() {
    let env = TestEnv::new();
    let intent = env.intent(None);
    env.abandon(&intent);
    let id = intent.id.short();
    let _socket = listen(&env.record(&id));
    remove(&env.record(&id));
    assert_eq!(id_of(&env, &id[..11]).unwrap(), id);
    assert!(env.resolver().all().unwrap().iter().any(|known| known.id == id && known.claimed));
    assert!(is_unknown(&TestEnv::new(), &id));
}

/// spec: 5.6
#[test]
fn a_sandbox_of_which_only_the_marker_is_left_is_found_by_its_id() {
    let env = TestEnv::new();
    let id = Id::new().unwrap().short();
    let mut alive = Alive::marked(&format!("0123456789ab:{id}"));
    assert_eq!(id_of(&env, &id).unwrap(), id);
    assert_eq!(id_of(&env, &id[..11]).unwrap(), id);
    assert!(!env.resolver().resolve(&id).unwrap().claimed);
    alive.end();
    assert!(is_unknown(&env, &id));
}

#[test]
fn a_root_of_nobody_and_a_root_that_cannot_be_read_are_told_apart() {
    let env = TestEnv::new();
    assert!(is_unknown(&env, "web"));
    std::os::unix::fs::symlink("/nonexistent", env.root()).unwrap();
    assert!(env.resolver().blocked().is_some());
    assert!(matches!(id_of(&env, "web"), Err(ResolveError::Unreadable { .. })));
}

/// spec: 27.5
#[test]
fn intent_that_is_written_after_the_first_look_is_read() {
    let env = TestEnv::new();
    let intent = env.intent(Some("web"));
    let record = env.reserve(&intent);
    let file = record.files().path().join("intent.json");
    let text = std::fs::read(&file).unwrap();
    for written in [0, text.len() / 2] {
        std::fs::write(&file, &text[..written]).unwrap();
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, &file, inotify::WatchFlags::CLOSE_NOWRITE).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                rustix::io::read(&watch, &mut [0; 64]).unwrap();
                std::fs::write(&file, &text).unwrap();
            });
            let known = env.resolver().resolve(&intent.id.short()).unwrap();
            assert_eq!((known.intent.as_ref(), known.damage), (Some(&intent), Vec::new()), "{written}");
        });
    }
}
