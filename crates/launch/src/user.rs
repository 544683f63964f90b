//! Another user for a command, by the files of passwd(5) and group(5), else by getent(1), since a static program has no
//! name services of its own.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_request::value::EnvSetting;
use penfold_state::Identity;

use crate::error::LaunchError;

/// The verb that becomes another user, and then a command.
pub const AS_USER: &str = "as-user";

/// A user as whom a command runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its ids.
    pub identity: Identity,
    /// The variables of a login: empty for a number without an entry.
    pub variables: Vec<EnvSetting>,
}

/// An entry of passwd(5).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

/// Finds the user that a flag names; `None` if the command runs as the caller.
///
/// # Errors
/// When there is no such user or group, or the caller may not become it.
pub fn find_user(given: &str) -> Result<Option<User>, LaunchError> {
    let user = find(given, &Files)?;
    let own = rustix::process::geteuid();
    if !own.is_root() && own.as_raw() != user.identity.uid {
        let sentence = format!("only root can run a command as user `{given}`");
        return Err(LaunchError::new(sentence));
    }
    // An ordinary user is that user, with those groups, already.
    Ok(Some(user).filter(|_| own.is_root()))
}

/// Finds a user of this host, whoever the caller is.
///
/// # Errors
/// When there is no such user or group.
pub fn look_up_user(given: &str) -> Result<User, LaunchError> {
    find(given, &Files)
}

/// The words in front of a command that make it run as this user; `scratch` if it gets a scratch directory. `program` is that of penfold.
#[must_use]
pub fn as_user_words(program: &Path, user: &Identity, scratch: bool) -> Vec<OsString> {
    let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
    let mut words: Vec<OsString> = vec![
        program.into(),
        AS_USER.into(),
        format!("--uid={}", user.uid).into(),
        format!("--gid={}", user.gid).into(),
        format!("--groups={}", groups.join(",")).into(),
    ];
    words.extend(scratch.then(|| "--scratch".into()));
    words.push("--".into());
    words
}

/// The same for a command whose standard input is a terminal, which then belongs to the user.
#[must_use]
pub fn as_user_words_on_terminal(program: &Path, user: &Identity) -> Vec<OsString> {
    let mut words = as_user_words(program, user, false);
    words.insert(2, "--terminal".into());
    words
}

/// Where users and groups are looked up.
trait Databases {
    /// The lines of a database, `passwd` or `group`.
    fn lines(&self, database: &str) -> String;
    /// The lines for a key, by the name services.
    fn get(&self, database: &str, key: &str) -> Option<String>;
}

/// Those of this host.
struct Files;

impl Databases for Files {
    fn lines(&self, database: &str) -> String {
        let bytes = std::fs::read(PathBuf::from("/etc").join(database)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn get(&self, database: &str, key: &str) -> Option<String> {
        let mut command = Command::new("getent");
        command.args([database, key]).stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn find(given: &str, databases: &impl Databases) -> Result<User, LaunchError> {
    let unknown = |kind: &str, word: &str| {
        LaunchError::new(format!("there is no {kind} `{word}`")).because("neither in /etc nor by getent")
    };
    let (user, group) = match given.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (given, None),
    };
    let group =
        group.map(|word| group_id(word, databases).ok_or_else(|| unknown("group", word))).transpose()?;
    let entry = entry(user, databases);
    let (uid, gid) = match (&entry, number(user), group) {
        (Some(entry), _, _) => (entry.uid, group.unwrap_or(entry.gid)),
        (None, Some(uid), Some(gid)) => (uid, gid),
        (None, Some(_), None) => {
            return Err(unknown("user", user).hint(format!("give the group, too: `--user {user}:{user}`")));
        }
        (None, None, _) => return Err(unknown("user", user)),
    };
    // A group that was named is the only one, as in docker.
    let mut groups = vec![gid];
    if let (Some(entry), None) = (&entry, group) {
        groups.extend(member_of(&entry.name, databases));
        groups.sort_unstable();
        groups.dedup();
    }
    let variables = entry.map(|entry| variables(&entry)).unwrap_or_default();
    Ok(User { identity: Identity { uid, gid, groups }, variables })
}

fn variables(entry: &Entry) -> Vec<EnvSetting> {
    let shell = if entry.shell.is_empty() { "/bin/sh" } else { &entry.shell };
    login_variables(&entry.name, entry.home.as_ref(), shell)
}

/// Returns the variables of a login.
pub(crate) fn login_variables(name: &str, home: &OsStr, shell: &str) -> Vec<EnvSetting> {
    let (name, shell) = (OsStr::new(name), OsStr::new(shell));
    let all = [("HOME", home), ("USER", name), ("LOGNAME", name), ("SHELL", shell)];
    let setting = |(key, value): (&str, &OsStr)| EnvSetting { key: key.into(), value: Some(value.into()) };
    all.map(setting).to_vec()
}

fn number(word: &str) -> Option<u32> {
    // (uid_t) -1 means "no change" for the kernel.
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|&id| is_number && id != u32::MAX)
}

/// The entry of a user: by name, else by number.
fn entry(word: &str, databases: &impl Databases) -> Option<Entry> {
    let in_text = |text: &str| {
        let all = || text.lines().filter_map(parse);
        let by_number = || number(word).and_then(|uid| all().find(|entry| entry.uid == uid));
        all().find(|entry| entry.name == word).or_else(by_number)
    };
    in_text(&databases.lines("passwd")).or_else(|| in_text(&databases.get("passwd", word)?))
}

fn parse(line: &str) -> Option<Entry> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell] = fields.as_slice() else { return None };
    let text = |text: &&str| (*text).to_owned();
    Some(Entry {
        name: text(name),
        uid: number(uid)?,
        gid: number(gid)?,
        home: text(home),
        shell: text(shell),
    })
}

/// The id of a group: by name, else by number.
fn group_id(word: &str, databases: &impl Databases) -> Option<u32> {
    let in_text = |text: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == word).then(|| number(fields.nth(1)?)).flatten()
        })
    };
    in_text(&databases.lines("group"))
        .or_else(|| number(word))
        .or_else(|| in_text(&databases.get("group", word)?))
}

/// The groups of a user besides the one of its entry.
fn member_of(name: &str, databases: &impl Databases) -> Vec<u32> {
    let listed = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members] = fields.as_slice() else { return None };
        members.split(',').any(|member| member.trim() == name).then(|| number(gid)).flatten()
    };
    let mut groups: Vec<u32> = databases.lines("group").lines().filter_map(listed).collect();
    // Of a user of another service, this has the groups: the name, then the numbers.
    let found = databases.get("initgroups", name).unwrap_or_default();
    groups.extend(found.split_whitespace().skip(1).filter_map(number));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake;

    impl Databases for Fake {
        fn lines(&self, database: &str) -> String {
            let text = match database {
                "passwd" => {
                    "root:x:0:0:root:/root:/bin/bash\nann:x:1000:100:Ann,,,:/home/ann:\nbad:x:y:1::/:\n"
                }
                _ => "users:x:100:\naudio:x:29:bob,ann\n7:x:70:\n",
            };
            text.to_owned()
        }

        fn get(&self, database: &str, key: &str) -> Option<String> {
            match (database, key) {
                ("passwd", "ldap") => Some("ldap:*:5000:5001:L:/home/ldap:/bin/zsh\n".to_owned()),
                ("group", "far") => Some("far:*:6000:ldap\n".to_owned()),
                ("initgroups", "ldap") => Some("ldap                 6000 6001\n".to_owned()),
                _ => None,
            }
        }
    }

    fn ids(given: &str) -> Option<(u32, u32, Vec<u32>)> {
        find(given, &Fake).ok().map(|user| (user.identity.uid, user.identity.gid, user.identity.groups))
    }

    /// spec: 5.20
    #[test]
    fn users_are_found_by_name_and_number_here_and_elsewhere() {
        assert_eq!(ids("ann"), Some((1000, 100, vec![29, 100])));
        assert_eq!(ids("1000"), ids("ann"));
        assert_eq!(ids("ann:users"), Some((1000, 100, vec![100])));
        // A name goes before a number.
        assert_eq!(ids("ann:7"), Some((1000, 70, vec![70])));
        assert_eq!(ids("4321:8"), Some((4321, 8, vec![8])));
        assert_eq!(ids("ldap"), Some((5000, 5001, vec![5001, 6000, 6001])));
        assert_eq!(ids("ldap:far"), Some((5000, 6000, vec![6000])));
        for unknown in ["bob", "4321", "ann:nobody", "", "4294967295:1", "bad", "-1:1"] {
            assert_eq!(ids(unknown), None, "{unknown}");
        }
        let shell = |name: &str| find(name, &Fake).unwrap().variables.last().unwrap().value.clone().unwrap();
        assert_eq!((shell("ann"), shell("ldap")), ("/bin/sh".into(), "/bin/zsh".into()));
    }
}
