//! Users, by their names where they have one.

use std::collections::HashMap;

/// The names of users in `/etc/passwd`, passwd(5). Users of other sources are shown by number.
pub(crate) fn names() -> HashMap<u32, String> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
    };
    let mut names = HashMap::new();
    for (user, name) in text.lines().filter_map(name) {
        // The first entry of a number counts, as in getpwuid(3).
        names.entry(user).or_insert(name);
    }
    names
}
