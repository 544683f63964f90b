//! A fault as one line: `VERB/LEVEL ROLE CALL[:PART]#N FAULT`.
//!
//! `PART` is a part of the call's path. `N` counts such calls of that process from 1; `*` means all of them.

use std::fmt;
use std::str::FromStr;

/// The verb of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    /// In the foreground; the command leaves processes and exits.
    Run,
    /// In the foreground, beginning with a SIGTERM.
    RunStopped,
    /// Detached, until its id was printed.
    RunDetached,
    /// A command in a detached sandbox; it leaves processes and exits.
    Exec,
    /// `kill` of a detached sandbox.
    Kill,
    /// `stop` of a detached sandbox.
    Stop,
    /// `rm -f` of a running detached sandbox.
    Rm,
    /// `gc` with an orphan: a sandbox whose supervisor and standby were both killed.
    Gc,
}

impl Verb {
    pub(crate) const ALL: [Verb; 8] = [
        Verb::Run,
        Verb::RunStopped,
        Verb::RunDetached,
        Verb::Exec,
        Verb::Kill,
        Verb::Stop,
        Verb::Rm,
        Verb::Gc,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Run => "run",
            Verb::RunStopped => "run-stop",
            Verb::RunDetached => "run-d",
            Verb::Exec => "exec",
            Verb::Kill => "kill",
            Verb::Stop => "stop",
            Verb::Rm => "rm",
            Verb::Gc => "gc",
        }
    }
}

impl FromStr for Verb {
    type Err = String;

    fn from_str(text: &str) -> Result<Verb, String> {
        Verb::ALL
            .into_iter()
            .find(|verb| verb.name() == text)
            .ok_or_else(|| format!("`{text}` is none of run, run-stop, run-d, exec, kill, stop, rm, gc"))
    }
}

/// The containment of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Cgroup,
    Subreaper,
    Pidns,
    /// Cgroup, with a fallback to subreaper.
    Auto,
}

impl Level {
    pub(crate) const ALL: [Level; 4] = [Level::Cgroup, Level::Subreaper, Level::Pidns, Level::Auto];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Cgroup => "cgroup",
            Level::Subreaper => "subreaper",
            Level::Pidns => "pidns",
            Level::Auto => "auto",
        }
    }
}

/// A verb at a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) verb: Verb,
    pub(crate) level: Level,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.verb.name(), self.level.name())
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let (verb, level) = text.split_once('/').ok_or_else(|| format!("`{text}` is not VERB/LEVEL"))?;
        let level = Level::ALL
            .into_iter()
            .find(|known| known.name() == level)
            .ok_or_else(|| format!("`{level}` is none of cgroup, subreaper, pidns, auto"))?;
        Ok(Place { verb: verb.parse()?, level })
    }
}

/// The effect of a fault on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The call does nothing and fails with this error.
    Error(&'static str, i32),
    /// The process is killed before the call.
    Kill,
}

/// Errors by their names.
const ERRORS: &[(&str, i32)] = &[
    ("EPERM", 1),
    ("ENOENT", 2),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", 5),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EBUSY", 16),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOSPC", 28),
    ("EROFS", 30),
    ("EPIPE", 32),
    ("ENOSYS", 38),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
];

impl Fault {
    /// Tells whether a host may return this error again and again.
    pub(crate) fn may_last(self) -> bool {
        ["ENOSPC", "EIO", "EMFILE", "ENOMEM", "EPERM"].contains(&self.to_string().as_str())
    }

    /// The faults that are drawn for every call that can fail.
    pub(crate) fn common() -> Vec<Fault> {
        let names = ["ENOSPC", "EIO", "EMFILE", "ENOMEM", "EAGAIN", "EINTR", "EPERM"];
        names.iter().filter_map(|name| name.parse().ok()).chain([Fault::Kill]).collect()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Error(name, _) => name,
            Fault::Kill => "SIGKILL",
        })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        if text == "SIGKILL" {
            return Ok(Fault::Kill);
        }
        ERRORS
            .iter()
            .find(|(name, _)| *name == text)
            .map(|&(name, number)| Fault::Error(name, number))
            .ok_or_else(|| format!("`{text}` is no fault known here"))
    }
}

/// The calls to hit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Aim {
    /// The role of the process.
    pub(crate) role: String,
    /// The name of the call.
    pub(crate) call: String,
    /// A part of its path.
    pub(crate) part: String,
    /// The position among such calls, from 1; `None` means all.
    pub(crate) number: Option<u32>,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Injection {
    pub(crate) place: Place,
    pub(crate) aim: Aim,
    pub(crate) fault: Fault,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.place, self.aim.role, self.aim.call)?;
        if !self.aim.part.is_empty() {
            write!(f, ":{}", self.aim.part)?;
        }
        match self.aim.number {
            Some(number) => write!(f, "#{number}")?,
            None => f.write_str("#*")?,
        }
        write!(f, " {}", self.fault)
    }
}

impl FromStr for Injection {
    type Err = String;

    fn from_str(text: &str) -> Result<Injection, String> {
        let wrong = || format!("`{text}` is not VERB/LEVEL ROLE CALL[:PART]#N FAULT");
        let words: Vec<&str> = text.split_whitespace().collect();
        let [place, role, call, fault] = words[..] else { return Err(wrong()) };
        let (call, number) = call.rsplit_once('#').ok_or_else(wrong)?;
        let (call, part) = call.split_once(':').unwrap_or((call, ""));
        let number = if number == "*" { None } else { Some(number.parse().map_err(|_| wrong())?) };
        let aim = Aim { role: role.to_owned(), call: call.to_owned(), part: part.to_owned(), number };
        Ok(Injection { place: place.parse()?, aim, fault: fault.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_as_it_is_written() {
        for text in [
            "run/cgroup supervisor openat#12 EMFILE",
            "run-d/pidns launcher clone#1 SIGKILL",
            "exec/subreaper client openat:cgroup.procs#* EIO",
        ] {
            assert_eq!(text.parse::<Injection>().unwrap().to_string(), text);
        }
        assert!("run launcher openat#1 EIO".parse::<Injection>().is_err());
        assert!("run/cgroup launcher openat#1 EFUNNY".parse::<Injection>().is_err());
    }
}
