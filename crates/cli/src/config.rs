//! The configuration: defaults for flags, from files and variables.
//!
//! `/etc/penfold/config.toml` < the user's file < `PENFOLD_*` < flags. A file that is wrong stops every verb: an ignored line
//! might have named another state root, or have spared a daemon.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use penfold_request::SandboxSpec;
use rustix::fs::OFlags;
use serde::Deserialize;

use crate::failure::{Failure, FailureKind};
use crate::output::Colour;
use crate::place::RemotePlace;
use crate::{value, variables};

/// The file of the host.
const OF_HOST: &str = "/etc/penfold/config.toml";
/// The variable that names the only file; without a file if it is empty.
const FILE: &str = "PENFOLD_CONFIG";
/// The variable with the state root.
const ROOT: &str = "PENFOLD_ROOT";
/// The variable with the use of colour.
const COLOR: &str = "PENFOLD_COLOR";
/// The largest file.
const LARGEST: u64 = 1 << 20;

/// What a file may set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// The state root.
    root: Option<String>,
    /// The server.
    pub(crate) host: Option<String>,
    /// The file with the token for the server.
    pub(crate) token_file: Option<PathBuf>,
    /// Where the events of sandboxes are written too.
    pub(crate) log: Option<String>,
    /// When to use colour.
    color: Option<String>,
    /// Defaults of `run`, with the keys of a file for `run --spec`.
    run: Option<SandboxSpec>,
    /// Defaults of `guard`.
    #[serde(default)]
    pub(crate) guard: Guard,
}

/// Defaults of `guard`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Guard {
    /// Rules that name daemons which are no leaks.
    pub(crate) ignore: Vec<String>,
}

impl Config {
    /// Reads the files. Keys of the user's file replace those of the host's.
    ///
    /// # Errors
    /// When a file cannot be read or has something that is no setting.
    pub(crate) fn read() -> Result<Config, Failure> {
        read()
    }

    /// The state root: that of the variable, else of the files.
    ///
    /// # Errors
    /// When the variable is wrong.
    pub(crate) fn root(&self) -> Result<Option<PathBuf>, Failure> {
        let named = variable(ROOT).map(|text| value::root(&text)).transpose();
        Ok(named.map_err(|error| wrong(ROOT, error))?.or_else(|| self.root.clone().map(PathBuf::from)))
    }

    /// When to use colour: by the variable, else by the files.
    ///
    /// # Errors
    /// When the variable is wrong.
    pub(crate) fn colour(&self) -> Result<Option<Colour>, Failure> {
        let named = variable(COLOR).map(|text| {
            let text = text.to_string_lossy().into_owned();
            Colour::from_str(&text, false)
                .map_err(|_| value::Invalid::new(text, "is not known", "auto, always, never"))
        });
        let named = named.transpose().map_err(|error| wrong(COLOR, error))?;
        Ok(named.or_else(|| Colour::from_str(self.color.as_deref()?, false).ok()))
    }

    /// Adds the event log of this host.
    pub(crate) fn with_event_log(&self, spec: SandboxSpec) -> SandboxSpec {
        SandboxSpec { event_log: spec.event_log.clone().or_else(|| self.log.clone()), ..spec }
    }

    /// Whether the files have defaults of `run`.
    pub(crate) fn has_defaults(&self) -> bool {
        self.run.is_some()
    }

    /// Lays a specification over the defaults of the files. What works for detached sandboxes only is left out for others.
    pub(crate) fn over_defaults(&self, spec: SandboxSpec, is_detached: bool) -> SandboxSpec {
        let Some(mut defaults) = self.run.clone() else { return spec };
        if !is_detached {
            (defaults.lease_ms, defaults.idle_timeout_ms) = (None, None);
            (defaults.lease_pauses, defaults.survive_supervisor) = (false, false);
            (defaults.ready, defaults.ready_timeout_ms, defaults.restart) = (None, None, None);
        }
        spec.over(defaults)
    }
}

/// The value of a variable, if it is not empty.
fn variable(name: &str) -> Option<OsString> {
    variables::get(OsStr::new(name)).filter(|value| !value.is_empty())
}

fn wrong(name: &str, error: value::Invalid) -> Failure {
    Failure::new(FailureKind::Usage, format!("the variable `{name}` is wrong")).because(error)
}

/// Reads the files, and merges them.
fn read() -> Result<Config, Failure> {
    let mut merged = toml::Table::new();
    for (file, origin) in files() {
        let failed = |why: String| {
            Failure::new(FailureKind::Usage, format!("cannot read the configuration `{}`", file.display()))
                .because(why)
                .hint(format!("`{FILE}=` runs penfold without configuration; docs/config.md lists the keys"))
        };
        match text(&file, origin) {
            Ok(Some(text)) => merge(&mut merged, table(&text).map_err(failed)?),
            Ok(None) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    if merged.is_empty() {
        return Ok(Config::default());
    }
    // Each file was read alone before, so that an error names its file.
    toml::Value::Table(merged).try_into().map_err(|error: toml::de::Error| {
        Failure::new(FailureKind::Usage, "cannot use the configuration").because(error.message().to_owned())
    })
}

/// Where a file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The variable names it.
    Named,
    /// It is that of the host.
    Host,
    /// It is in the home directory that the variables name, which may be that of another user.
    Home,
}

/// The files, in the order in which they are merged.
fn files() -> Vec<(PathBuf, Origin)> {
    if let Some(file) = variables::get(OsStr::new(FILE)) {
        return Some((PathBuf::from(file), Origin::Named))
            .filter(|(file, _)| !file.as_os_str().is_empty())
            .into_iter()
            .collect();
    }
    let base = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = base.or_else(|| variables::user_home().map(|home| home.join(".config")));
    let user = base.map(|base| (base.join("penfold/config.toml"), Origin::Home));
    Some((PathBuf::from(OF_HOST), Origin::Host)).into_iter().chain(user).collect()
}

/// Reads a file; `None` if there is none. A file that another user could have written is refused, or passed over in a home
/// directory, as after `sudo`.
fn text(path: &Path, origin: Origin) -> io::Result<Option<String>> {
    // A pipe in the place of a file must not hold up every verb; one that is named is meant.
    let flags = if origin == Origin::Named { OFlags::empty() } else { OFlags::NONBLOCK };
    let opened = std::fs::File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) => {
            let is_missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
            let is_closed = error.kind() == io::ErrorKind::PermissionDenied && origin == Origin::Home;
            // Only a file that was named must be there.
            return if is_closed || is_missing && origin != Origin::Named { Ok(None) } else { Err(error) };
        }
    };
    let meta = file.metadata()?;
    let user = rustix::process::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != user {
        let sentence = format!("it belongs to user {}", meta.uid());
        return if origin == Origin::Home { Ok(None) } else { Err(io::Error::other(sentence)) };
    }
    if origin != Origin::Named && !meta.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if meta.is_file() && meta.mode() & 0o002 != 0 {
        return Err(io::Error::other("every user may write to it"));
    }
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text)?;
    let is_large = u64::try_from(text.len()).unwrap_or(u64::MAX) > LARGEST;
    if is_large { Err(io::Error::other("it is larger than 1 MiB")) } else { Ok(Some(text)) }
}

/// Reads the text of one file, and checks all that it sets.
fn table(text: &str) -> Result<toml::Table, String> {
    let config: Config = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        format!("line {line}: {}", error.message().replace('\n', " "))
    })?;
    if let Some(color) = &config.color
        && Colour::from_str(color, false).is_err()
    {
        return Err(format!("`color = \"{color}\"` is not known; accepted: auto, always, never"));
    }
    if let Some(host) = &config.host {
        host.parse::<RemotePlace>()
            .map_err(|error| format!("`host`: {}", penfold_state::error_chain(&error)))?;
    }
    for path in config.root.iter().map(Path::new).chain(config.token_file.as_deref()) {
        if !path.is_absolute() {
            return Err(format!("`{}` is no absolute path", path.display()));
        }
    }
    if let Some(log) =
        config.log.as_ref().filter(|log| *log != value::JOURNALD && !Path::new(log).is_absolute())
    {
        return Err(format!("`log = \"{log}\"` is neither `journald` nor an absolute path"));
    }
    if config.run.as_ref().is_some_and(|run| !run.command.is_empty() || run.name.is_some()) {
        return Err("`run` has `command` or `name`, which no two sandboxes share; `penfold run --spec FILE` reads them"
            .to_owned());
    }
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// Replaces the keys that the second table has; tables within are merged.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use penfold_request::Containment;

    use super::*;

    /// spec: 8.15
    #[test]
    fn keys_of_the_second_file_replace_those_of_the_first() {
        let first = table(
            "color = 'never'\n[run]\ngrace_ms = 5\nspare = ['a']\ncontain = 'pidns'\n[guard]\nignore = ['x']",
        );
        let second = table("[run]\nspare = ['b']\n").unwrap();
        let mut merged = first.unwrap();
        merge(&mut merged, second);
        let config: Config = toml::Value::Table(merged).try_into().unwrap();
        let run = config.run.as_ref().unwrap();
        assert_eq!((run.grace_ms, run.spare.as_slice()), (Some(5), &["b".to_owned()][..]));
        assert_eq!((config.color.as_deref(), config.guard.ignore.len()), (Some("never"), 1));
        let spec = config.over_defaults(SandboxSpec::default(), false);
        assert_eq!((spec.contain, spec.spare), (Some(Containment::Pidns), vec!["b".to_owned()]));
    }

    /// spec: 8.15
    #[test]
    fn what_is_no_setting_is_refused_with_its_line() {
        for (text, why) in [
            ("colour = 'auto'", "line 1: unknown field `colour`"),
            ("\n[run]\ntimeout = 3", "line 3: unknown field `timeout`"),
            ("color = 'blue'", "is not known"),
            ("root = 'here'", "no absolute path"),
            ("log = 'journal'", "neither `journald` nor an absolute path"),
            ("host = 'nowhere'", "`host`"),
            ("[run]\ncommand = ['true']", "no two sandboxes share"),
            ("[run\n", "line 1"),
        ] {
            let said = table(text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    /// spec: 8.15
    #[test]
    fn leases_are_for_detached_sandboxes() {
        let config: Config = toml::from_str("[run]\nlease_ms = 7\ngrace_ms = 5").unwrap();
        let over = |is_detached| config.over_defaults(SandboxSpec::default(), is_detached);
        assert_eq!((over(true).lease_ms, over(true).grace_ms), (Some(7), Some(5)));
        assert_eq!((over(false).lease_ms, over(false).grace_ms), (None, Some(5)));
    }
}
