//! The id of a sandbox, never used twice.

use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::time::now_ms;

/// Identifies a sandbox: internally a uuid v7, for users its last 12 digits.
///
/// The last digits are the random ones: a prefix of them tells sandboxes apart that began in the same second. They are
/// safe as a file name, a cgroup name and a unit name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Id(Uuid);

impl Id {
    /// Makes a new id.
    ///
    /// # Errors
    /// Those of getrandom(2).
    pub fn new() -> io::Result<Id> {
        let mut random = [0_u8; 10];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        Ok(Id(uuid::Builder::from_unix_timestamp_millis(now_ms(), &random).into_uuid()))
    }

    /// Returns the short id: 12 lower-case hexadecimal digits.
    pub fn short(&self) -> String {
        let text = self.0.simple().to_string();
        text.get(20..).unwrap_or_default().to_owned()
    }

    /// Parses the full uuid with its hyphens, as in records and `penfold inspect`.
    pub fn from_whole(text: &str) -> Option<Id> {
        let hyphenated = text.len() == 36;
        Uuid::try_parse(text).ok().filter(|_| hyphenated).map(Id)
    }

    /// Tells whether a text has the form of [`Id::short`]. Only such names are ever used in a path.
    pub fn is_short(text: &str) -> bool {
        text.len() == 12 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_made_at_once_share_no_long_prefix_of_what_is_shown() {
        let ids: Vec<String> = (0..64).map(|_| Id::new().unwrap().short()).collect();
        assert!(ids.iter().all(|id| Id::is_short(id)), "{ids:?}");
        let mut prefixes: Vec<&str> = ids.iter().map(|id| &id[..8]).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes.len(), 64);
    }

    /// spec: 5.6
    #[test]
    fn full_uuid_is_read_as_it_is_written_in_records_and_nothing_else() {
        let id = Id::new().unwrap();
        let written = serde_json::to_string(&id).unwrap();
        let text = written.trim_matches('"');
        assert_eq!(Id::from_whole(text), Some(id));
        assert_eq!(Id::from_whole(&text.to_uppercase()), Some(id));
        let simple = text.replace('-', "");
        for text in
            ["", &text[1..], &simple, &format!("{{{simple}}}"), &format!("urn:uuid:{text}"), &id.short()]
        {
            assert_eq!(Id::from_whole(text), None, "{text:?}");
        }
    }

    #[test]
    fn nothing_that_could_leave_a_directory_is_an_id() {
        for text in
            ["", ".", "..", "../../etc/pas", "3f9a1c2b7d0", "3f9a1c2b7d04a", "3F9A1C2B7D04", "3f9a1c2b7d/4"]
        {
            assert!(!Id::is_short(text), "{text:?}");
        }
    }
}
