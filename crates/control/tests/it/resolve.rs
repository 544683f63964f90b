//! From words to sandboxes: of whole records, of damaged ones, of none.

use crate::view_support::{Alive, Yard, listen, remove, scribble};
use penfold_control::ResolveError;
use penfold_state::{Id, names};
use penfold_testkit::skip;

fn id_of(yard: &Yard, word: &str) -> Result<String, ResolveError> {
    yard.finder().resolve(word).map(|known| known.id)
}

fn is_unknown(yard: &Yard, word: &str) -> bool {
    matches!(id_of(yard, word), Err(ResolveError::NotFound { .. }))
}

fn candidates(yard: &Yard, word: &str) -> Vec<String> {
    match id_of(yard, word) {
        Err(ResolveError::Ambiguous { candidates, .. }) => candidates.into_iter().map(|one| one.id).collect(),
        other => panic!("`{word}` is not ambiguous: {other:?}"),
    }
}

/// An id that begins like this.
fn id_with(prefix: &str) -> Id {
    let digits = Id::new().unwrap().short();
    let text = format!("01900000-0000-7000-8000-{prefix}{}", &digits[prefix.len()..]);
    serde_json::from_str(&format!("\"{text}\"")).unwrap()
}

/// spec: 5.6
#[test]
fn the_empty_word_and_what_is_no_word_match_nothing() {
    let yard = Yard::new();
    let intent = yard.intent(Some("web"));
    let _record = yard.reserve(&intent);
    for word in ["", " ", ".", "..", "-", "*", "/", "../root", "a/b", "web/", "web\n", "\0", "é", "WEB"] {
        assert!(is_unknown(&yard, word), "{word:?}");
    }
    let path = format!("../sandboxes/{}", intent.id);
    assert!(is_unknown(&yard, &path));
}

/// spec: 5.6
#[test]
fn an_id_its_unique_beginning_and_a_name_mean_the_sandbox() {
    let yard = Yard::new();
    let mut one = yard.intent(Some("web"));
    let mut two = yard.intent(None);
    (one.id, two.id) = (id_with("aaaa1"), id_with("aaaa2"));
    let (_one, _two) = (yard.reserve(&one), yard.reserve(&two));
    let _name = names::take(&yard.root(), "web", &one.id).unwrap();
    for word in [one.id.short().as_str(), "aaaa1", "web"] {
        assert_eq!(id_of(&yard, word).unwrap(), one.id.short(), "{word}");
    }
    assert_eq!(id_of(&yard, "aaaa2").unwrap(), two.id.short());
    assert_eq!(candidates(&yard, "aaaa"), [one.id.short(), two.id.short()]);
    assert!(is_unknown(&yard, "aaaa3"));
    let said = id_of(&yard, "aaaa").unwrap_err().to_string();
    assert!(said.contains(&format!("{} (web), {} (-)", one.id, two.id)), "{said}");
}

/// spec: 5.6
#[test]
fn a_name_wins_over_a_beginning() {
    let yard = Yard::new();
    let mut named = yard.intent(Some("cafe"));
    let mut other = yard.intent(None);
    (named.id, other.id) = (id_with("0001"), id_with("cafe"));
    let (record, _other) = (yard.reserve(&named), yard.reserve(&other));
    let name = names::take(&yard.root(), "cafe", &named.id).unwrap();
    assert_eq!(id_of(&yard, "cafe").unwrap(), named.id.short());
    // The same without the file of the name.
    remove(&yard.root().join("names"));
    assert_eq!(id_of(&yard, "cafe").unwrap(), named.id.short());
    // The same once it has ended.
    drop(name);
    yard.let_go(record);
    remove(&yard.record(&named.id.short()));
    yard.end(&named, r#"{"code":0}"#, "exit");
    assert_eq!(id_of(&yard, "cafe").unwrap(), named.id.short());
}

/// spec: 5.6
#[test]
fn a_name_means_the_newest_and_one_that_lives_before_those_that_have_ended() {
    let yard = Yard::new();
    let [mut old, mut new, mut orphan] = [(); 3].map(|()| yard.intent(Some("job-1")));
    (old.made_at_ms, new.made_at_ms, orphan.made_at_ms) = (1000, 3000, 2000);
    yard.end(&new, r#"{"code":0}"#, "exit");
    assert_eq!(id_of(&yard, "job-1").unwrap(), new.id.short());
    yard.end(&old, r#"{"code":0}"#, "exit");
    assert_eq!(id_of(&yard, "job-1").unwrap(), new.id.short());
    let _record = yard.reserve(&orphan);
    assert_eq!(id_of(&yard, "job-1").unwrap(), orphan.id.short());
    let ended = yard.finder().ended_with_name("job-1").unwrap();
    assert_eq!(ended.iter().map(|known| &known.id).collect::<Vec<_>>(), [&new.id.short(), &old.id.short()]);
    assert!(yard.finder().ended_with_name("job").unwrap().is_empty());
}

/// spec: 5.6
#[test]
fn the_full_uuid_of_a_record_means_its_sandbox_and_no_other_with_the_same_digits_at_the_end() {
    let yard = Yard::new();
    let mut intent = yard.intent(Some("web"));
    intent.id = id_with("aaaa1");
    let _record = yard.reserve(&intent);
    let whole = serde_json::to_value(intent.id).unwrap();
    let whole = whole.as_str().unwrap();
    assert_eq!(id_of(&yard, whole).unwrap(), intent.id.short());
    assert_eq!(id_of(&yard, &whole.to_uppercase()).unwrap(), intent.id.short());
    assert!(is_unknown(&yard, &whole.replacen('0', "1", 1)));
    assert!(is_unknown(&yard, &whole.replace('-', "")));
    // A name may look like one.
    let named = yard.intent(Some("01900000-0000-7000-8000-bbbbbbbbbbbb"));
    let _named = yard.reserve(&named);
    assert_eq!(id_of(&yard, "01900000-0000-7000-8000-bbbbbbbbbbbb").unwrap(), named.id.short());
}

/// spec: 5.6
#[test]
fn a_name_that_another_sandbox_claims_is_not_believed() {
    let yard = Yard::new();
    let (web, thief) = (yard.intent(Some("web")), yard.intent(Some("other")));
    let (_web, _thief) = (yard.reserve(&web), yard.reserve(&thief));
    let _forged = names::take(&yard.root(), "web", &thief.id).unwrap();
    assert_eq!(id_of(&yard, "web").unwrap(), web.id.short());
    scribble(&yard.root().join("names/web"), b"../../../etc");
    assert_eq!(id_of(&yard, "web").unwrap(), web.id.short());
}

#[test]
fn damaged_neighbours_hide_nobody() {
    let yard = Yard::new();
    let web = yard.intent(Some("web"));
    let _record = yard.reserve(&web);
    for (number, text) in [&b""[..], b"{", b"null", b"{\"schema\":9}"].iter().enumerate() {
        let id = format!("ffffffffff{number:02}");
        std::fs::create_dir(yard.record(&id)).unwrap();
        scribble(&yard.record(&id).join("intent.json"), text);
        assert_eq!(id_of(&yard, &id).unwrap(), id);
    }
    std::os::unix::fs::symlink("/etc", yard.record("eeeeeeeeeeee")).unwrap();
    assert_eq!(id_of(&yard, "web").unwrap(), web.id.short());
    let known = yard.finder().resolve("eeeeeeeeeeee").unwrap();
    assert!(known.record.is_none() && !known.damage.is_empty());
}

/// spec: 5.6
#[test]
fn a_sandbox_without_a_record_is_found_by_its_leaf() {
    let yard = Yard::new();
    let mut intent = yard.intent(Some("lost-web"));
    let Some(mut alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
    assert!(alive.is_alive());
    let id = intent.id.short();
    for word in [id.as_str(), &id[..11], "lost-web"] {
        let known = yard.finder().resolve(word).unwrap();
        assert_eq!((&known.id, known.name.as_deref()), (&id, Some("lost-web")), "{word}");
        assert!(known.claimed && known.record.is_none() && known.leaf == intent.leaf);
        assert!(known.generation().is_some());
    }
    // Below another root it is none of theirs.
    let other = Yard::new();
    assert!(is_unknown(&other, &id) && is_unknown(&other, "lost-web"));
}

#[test]
fn a_damaged_record_keeps_its_name_by_its_leaf() {
    let yard = Yard::new();
    let mut intent = yard.intent(Some("scribbled"));
    let Some(_alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
    yard.abandon(&intent);
    scribble(&yard.record(&intent.id.short()).join("intent.json"), b"scribble");
    let known = yard.finder().resolve("scribbled").unwrap();
    assert_eq!(known.id, intent.id.short());
    assert!(known.record.is_some() && known.leaf == intent.leaf && !known.damage.is_empty());
}

/// spec: 5.6
#[test]
fn a_sandbox_without_a_record_is_found_by_the_socket_of_its_supervisor() {
    let yard = Yard::new();
    let intent = yard.intent(None);
    yard.abandon(&intent);
    let id = intent.id.short();
    let _socket = listen(&yard.record(&id));
    remove(&yard.record(&id));
    assert_eq!(id_of(&yard, &id[..11]).unwrap(), id);
    assert!(yard.finder().all().unwrap().iter().any(|known| known.id == id && known.claimed));
    assert!(is_unknown(&Yard::new(), &id));
}

/// spec: 5.6
#[test]
fn a_sandbox_of_which_only_the_marker_is_left_is_found_by_its_id() {
    let yard = Yard::new();
    let id = Id::new().unwrap().short();
    let mut alive = Alive::marked(&format!("0123456789ab:{id}"));
    assert_eq!(id_of(&yard, &id).unwrap(), id);
    assert_eq!(id_of(&yard, &id[..11]).unwrap(), id);
    assert!(!yard.finder().resolve(&id).unwrap().claimed);
    alive.end();
    assert!(is_unknown(&yard, &id));
}

#[test]
fn a_root_of_nobody_and_a_root_that_cannot_be_read_are_told_apart() {
    let yard = Yard::new();
    assert!(is_unknown(&yard, "web"));
    std::os::unix::fs::symlink("/nonexistent", yard.root()).unwrap();
    assert!(yard.finder().blocked().is_some());
    assert!(matches!(id_of(&yard, "web"), Err(ResolveError::Unreadable { .. })));
}
