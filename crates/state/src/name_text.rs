//! The rules for the texts of names, labels and tenants.

use std::collections::BTreeMap;

/// The rule of [`is_name`] in words.
pub const NAME_RULE: &str = "1 to 64 of letters, digits, `_`, `.` and `-`, the first a letter or a digit";

/// Tells whether a text is the name of a sandbox or of a session, by [`NAME_RULE`].
///
/// Such a name is safe as the name of a file, a cgroup or a unit.
pub fn is_name(text: &str) -> bool {
    is_word(text, b"-_.")
}

/// The mark between a tenant and a name. No name has it.
const MARK: char = '~';
/// The label with the tenant to whom a sandbox belongs.
pub const TENANT: &str = "penfold.tenant";

/// Returns the tenant to whom a sandbox with these labels belongs, if one does.
pub fn tenant_of(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(TENANT).map(String::as_str).filter(|tenant| is_name(tenant))
}

/// Returns the name that a sandbox holds below the state root: for a tenant's, `TENANT~NAME`.
pub fn held_name(tenant: Option<&str>, name: &str) -> String {
    tenant.map_or_else(|| name.to_owned(), |tenant| format!("{tenant}{MARK}{name}"))
}

/// Tells whether a text can be held as a name: a name, or that of a tenant's sandbox.
pub fn is_held_name(text: &str) -> bool {
    text.split_once(MARK).map_or_else(|| is_name(text), |(tenant, name)| is_name(tenant) && is_name(name))
}

/// Returns the name in a name that is held.
pub fn name_in(held: &str) -> &str {
    held.split_once(MARK).map_or(held, |(_, name)| name)
}

/// Returns the tenant in a name that is held, if it is that of a tenant's sandbox.
pub fn tenant_in(held: &str) -> Option<&str> {
    held.split_once(MARK).map(|(tenant, _)| tenant)
}

/// Tells whether a text is the key of a label: as a name, with `/` too.
pub fn is_label_key(text: &str) -> bool {
    is_word(text, b"-_./")
}

/// Tells whether a text is the value of a label: at most 256 bytes, no control characters.
pub fn is_label_value(text: &str) -> bool {
    const LONGEST: usize = 256;
    text.len() <= LONGEST && !text.chars().any(char::is_control)
}

fn is_word(text: &str, marks: &[u8]) -> bool {
    const LONGEST: usize = 64;
    let first = text.bytes().next();
    text.len() <= LONGEST
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_have_one_rule() {
        let (longest, longer) = ("a".repeat(64), "a".repeat(65));
        assert!(["a", "3f9", "a.b_c-d", &longest].into_iter().all(is_name));
        assert!(!["", ".", "..", "-a", "_a", "a/b", "a\n", "ä", &longer].into_iter().any(is_name));
        assert!(is_label_key("a/b") && !is_label_key("/b") && !is_label_key(&longer));
        assert!(is_label_value("") && !is_label_value("a\n") && !is_label_value(&"a".repeat(257)));
    }

    #[test]
    fn the_name_of_a_tenants_sandbox_has_both() {
        assert_eq!((held_name(None, "web"), name_in("web")), ("web".to_owned(), "web"));
        assert_eq!((held_name(Some("alice"), "web"), name_in("alice~web")), ("alice~web".to_owned(), "web"));
        assert_eq!((tenant_in("web"), tenant_in("alice~web")), (None, Some("alice")));
        let wrong = ["~web", "alice~", "a~b~c", "../x~web", "alice~../x", "~"];
        assert!(!wrong.into_iter().any(is_held_name));
        let tenant = |text: &str| {
            tenant_of(&BTreeMap::from([(TENANT.to_owned(), text.to_owned())])).map(str::to_owned)
        };
        assert_eq!(tenant("alice"), Some("alice".to_owned()));
        assert!(["a/b", "", "a~b", "..", "-a"].into_iter().all(|wrong| tenant(wrong).is_none()));
    }
}
