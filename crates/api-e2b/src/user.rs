//! Unix users: that of a sandbox, and those of this machine.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penfold_launch::user::{User as Account, look_up_user};
use penfold_request::value::EnvSetting;
use penfold_state::Identity;
use rustix::process::{Gid, getegid, geteuid, getgroups};

/// A user as whom commands run and files are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    /// The path of the home directory, as the user's commands see it.
    pub(crate) home: String,
    /// The ids and variables, for a user of this machine.
    pub(crate) account: Option<Arc<OfMachine>>,
}

/// What a user of this machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfMachine {
    pub(crate) identity: Arc<Identity>,
    /// The variables of a login.
    pub(crate) variables: Vec<EnvSetting>,
}

impl User {
    /// Finds a user of this machine, as whom this server can act.
    ///
    /// # Errors
    /// A sentence, when there is none with this name, or the server is not root and is another user.
    pub(crate) fn of_machine(name: &str) -> Result<User, String> {
        let now = Stamp::now();
        if let Some(found) = recall(name, now) {
            return found;
        }
        // This may start a program.
        let found = User::look_up(name);
        remember(name, now, &found);
        found
    }

    fn look_up(name: &str) -> Result<User, String> {
        let account = Some(name).filter(|name| !name.contains(':')).and_then(|name| look_up_user(name).ok());
        let account = account.ok_or_else(|| format!("invalid username: '{name}'; there is no such user"))?;
        let own = geteuid();
        if !own.is_root() && own.as_raw() != account.identity.uid {
            return Err(format!(
                "invalid username: '{name}'; the server is not root, and acts as its own user only"
            ));
        }
        Ok(User::of_account(name, account))
    }

    /// The first of these users as whom this server can act, else the server's own.
    pub(crate) fn first_of_machine(names: &[&str]) -> User {
        names.iter().find_map(|name| User::of_machine(name).ok()).unwrap_or_else(User::of_server)
    }

    /// A user whom the machine does not have: nothing can be done as this one.
    pub(crate) fn unknown(name: &str) -> User {
        User { name: name.to_owned(), home: "/".to_owned(), account: None }
    }

    /// The user of the server, who may have no entry among those of the machine.
    fn of_server() -> User {
        let own = geteuid().as_raw();
        User::of_machine(&own.to_string()).unwrap_or_else(|_| {
            let groups = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
            let identity = Identity { uid: own, gid: getegid().as_raw(), groups };
            User::of_account(&own.to_string(), Account { identity, variables: Vec::new() })
        })
    }

    fn of_account(name: &str, Account { identity, variables }: Account) -> User {
        let text = |key: &str| {
            let found = variables.iter().find(|setting| setting.key == key)?;
            Some(found.value.as_ref()?.to_string_lossy().into_owned()).filter(|text| !text.is_empty())
        };
        let (name, home) = (text("USER").unwrap_or_else(|| name.to_owned()), text("HOME"));
        let home = home.unwrap_or_else(|| "/".to_owned());
        User { name, home, account: Some(Arc::new(OfMachine { identity: Arc::new(identity), variables })) }
    }
}

/// What lookups of users have found.
type Lookups = HashMap<String, Result<User, String>>;

/// The time for which lookups are kept: name services tell nobody of their changes.
const KEPT: Duration = Duration::from_secs(5);
/// The most lookups that are kept.
const MOST: usize = 256;

/// The files of users and groups at a moment.
#[derive(Debug, Clone, Copy)]
struct Stamp {
    at: Instant,
    /// The inode and the time of the last change of each.
    files: [Option<(u64, i64, i64)>; 2],
}

impl Stamp {
    fn now() -> Stamp {
        let file = |path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
        };
        Stamp { at: Instant::now(), files: ["/etc/passwd", "/etc/group"].map(file) }
    }

    /// Tells whether the users are still those of an earlier moment.
    fn is_like(&self, since: &Stamp) -> bool {
        self.files == since.files && self.at.saturating_duration_since(since.at) < KEPT
    }
}

/// The lookups so far, and the state of the files before them.
static KNOWN: Mutex<Option<(Stamp, Lookups)>> = Mutex::new(None);

/// Returns what an earlier lookup has found, unless the users may be others by now.
fn recall(name: &str, now: Stamp) -> Option<Result<User, String>> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, lookups) = known.as_ref().filter(|(since, _)| now.is_like(since))?;
    lookups.get(name).cloned()
}

/// Keeps what a lookup has found that began at `now`.
fn remember(name: &str, now: Stamp, found: &Result<User, String>) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_usable = |(since, lookups): &&mut (Stamp, Lookups)| now.is_like(since) && lookups.len() < MOST;
    match known.as_mut().filter(is_usable) {
        Some((_, lookups)) => drop(lookups.insert(name.to_owned(), found.clone())),
        None => *known = Some((now, Lookups::from([(name.to_owned(), found.clone())]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_the_machine_have_their_ids_and_home() {
        let own = User::first_of_machine(&["no-such-user", "no:such"]);
        assert_eq!(own.account.unwrap().identity.uid, geteuid().as_raw());
        for name in ["no-such-user", "0:0", ""] {
            assert!(User::of_machine(name).unwrap_err().starts_with("invalid username"), "{name}");
        }
        let name = "no-such-user";
        let (now, other) = (Stamp::now(), Err("other".to_owned()));
        remember(name, now, &other);
        assert_eq!(recall(name, now), Some(other));
        assert_eq!(recall(name, Stamp { at: now.at + KEPT, ..now }), None);
        assert_eq!(recall(name, Stamp { files: [None; 2], ..now }), None);
        if geteuid().is_root() {
            let root = User::of_machine("root").unwrap();
            assert_eq!((root.name.as_str(), User::of_machine("0").unwrap()), ("root", root.clone()));
        }
    }
}
