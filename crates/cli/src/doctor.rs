//! `penfold doctor`: what it does.

mod strays;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_control::host_checks::{self, Abilities, Ability, LevelAbility, State};
use penfold_control::leaks::foreign::{self, Strays};
use penfold_control::leaks::{self, Leak, Survey, Thing};
use serde::Serialize;

use crate::args::Global;
use crate::args::doctor::DoctorArgs;
use crate::failure::Failure;
use crate::lines::{self, count};
use crate::{exit_codes, output, state, summary};

/// What `--json` prints.
#[derive(Serialize)]
struct Diagnosis<'a> {
    schema: u32,
    clean: bool,
    #[serde(flatten)]
    abilities: &'a Abilities,
    #[serde(flatten)]
    survey: &'a Survey,
    /// How many records are kept of sandboxes that have ended.
    ended: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign: Option<&'a Strays>,
}

/// Looks at the host and at what was left on it.
pub(crate) fn doctor(global: &Global, args: &DoctorArgs) -> Result<u8, Failure> {
    let blind = |error| Failure::new(exit_codes::DOCTOR_BLIND, "cannot look at this host").because(error);
    let root = state::root(global);
    // Leaks first: what the tries of the abilities make is none.
    let survey = leaks::look(&root, &temporary())
        .unwrap_or_else(|error| Survey { unread: vec![error.to_string()], ..Survey::default() });
    let makeshift = global.root.is_none() && root.starts_with("/tmp");
    let abilities = host_checks::look(&root, makeshift).map_err(blind)?;
    let fine = abilities.abilities.iter().all(|ability| ability.state == State::Ok);
    let strays = if args.foreign { Some(foreign::look().map_err(blind)?) } else { None };
    let lonely = strays.as_ref().is_none_or(|found| found.strays.is_empty() && found.complete);
    let clean = fine && survey.leaks.is_empty() && survey.complete && survey.unread.is_empty() && lonely;
    if args.json {
        let diagnosis = Diagnosis {
            schema: penfold_teardown::report::SCHEMA,
            clean,
            abilities: &abilities,
            survey: &survey,
            ended: survey.kept.len(),
            foreign: strays.as_ref(),
        };
        lines::json(&diagnosis, exit_codes::DOCTOR_BLIND)?;
    } else {
        let coloured = global.color.wanted(&std::io::stdout());
        let page = Page { text: String::new(), root: global.root.as_deref(), coloured, quiet: global.quiet };
        let text = page.all(&abilities, &survey, strays.as_ref());
        output::data(text.as_bytes(), exit_codes::DOCTOR_BLIND)?;
    }
    Ok(if clean { exit_codes::DOCTOR_CLEAN } else { exit_codes::DOCTOR_FOUND })
}

/// Where scratch directories may be.
pub(crate) fn temporary() -> Vec<PathBuf> {
    vec![std::env::temp_dir()]
}

/// What it is, in a few words: `cgroup /sys/fs/cgroup/penfold-…`.
pub(crate) fn describe(leak: &Leak) -> String {
    let what = match &leak.thing {
        Thing::Record { command, begun: true, .. } | Thing::Ended { command, .. } if !command.is_empty() => {
            format!("sandbox {} `{command}`", leak.id)
        }
        Thing::Record { path, begun: false, .. } => format!("record {}, never used", path.display()),
        Thing::Record { path, .. } | Thing::Ended { path, .. } | Thing::Unreachable { path } => {
            format!("record {}", path.display())
        }
        Thing::Processes => format!("processes of {}", leak.id),
        Thing::Cgroup { path } => format!("cgroup {}", path.display()),
        Thing::Directory { path } => format!("directory {}", path.display()),
        Thing::Name { path } => format!("name {}", path.display()),
        Thing::File { path } => format!("file {}", path.display()),
        Thing::Socket { path } => format!("socket {}", path.display()),
    };
    let why = match &leak.thing {
        Thing::Record { begun: true, .. } => "its supervisors are gone",
        Thing::Record { .. } => "its maker is gone",
        Thing::Ended { .. } => "it has ended",
        Thing::Name { .. } => "no living sandbox holds it",
        Thing::File { .. } => "its writer is gone",
        Thing::Socket { .. } => "its supervisor listens and has no record",
        Thing::Unreachable { .. } => "its supervisor lives and its control socket is gone",
        _ if !leak.claimed => "no record here, and perhaps one below another state root",
        Thing::Processes | Thing::Cgroup { .. } | Thing::Directory { .. } => "no record",
    };
    let mut text = what;
    if !leak.processes.is_empty() {
        let number = count(leak.processes.len(), "process", "processes");
        let named: Vec<String> = leak
            .processes
            .iter()
            .take(3)
            .map(|member| format!("{} {}", member.id.pid.as_raw_pid(), member.name))
            .collect();
        let more = if leak.processes.len() > named.len() { ", …" } else { "" };
        text = format!("{text}  {number} ({}{more})", named.join(", "));
    }
    // What is gone has no age.
    if matches!(leak.thing, Thing::Socket { .. }) {
        return format!("{text}, {why}");
    }
    format!("{text}, {} old, {why}", old(leak.age()))
}

pub(crate) fn old(age: Duration) -> String {
    const HOUR: u64 = 3600;
    match age.as_secs() {
        seconds if seconds >= 48 * HOUR => format!("{}d", seconds / (24 * HOUR)),
        seconds if seconds >= HOUR => format!("{}h", seconds / HOUR),
        _ => summary::human(Duration::from_secs(age.as_secs().max(1))),
    }
}

/// The command that removes it.
fn mend(leak: &Leak, root: Option<&Path>) -> String {
    let root = root.map_or_else(String::new, |root| format!(" --root {}", root.display()));
    let id = if leak.id.is_empty() { "--kind name" } else { &leak.id };
    if leak.is_alive() {
        return format!("penfold{root} kill {id}");
    }
    let young = if leak.is_certain() || leak.age() >= crate::gc::USUAL_AGE { "" } else { " --older-than 0" };
    format!("penfold{root} gc{young} {id}")
}

struct Page<'a> {
    text: String,
    root: Option<&'a Path>,
    coloured: bool,
    quiet: bool,
}

impl Page<'_> {
    fn all(mut self, found: &Abilities, survey: &Survey, strays: Option<&Strays>) -> String {
        for ability in &found.abilities {
            self.ability(ability);
        }
        for level in &found.levels {
            self.level(level, &found.abilities);
        }
        for unread in &survey.unread {
            self.line(State::Warn, &format!("not seen: {unread}"));
        }
        if survey.leaks.is_empty() {
            let found =
                if survey.complete { "nothing of ours was left behind" } else { "no leak of ours was seen" };
            self.line(if survey.complete { State::Ok } else { State::Warn }, found);
        } else {
            self.line(State::Fail, &format!("{} of ours", count(survey.leaks.len(), "leak", "leaks")));
        }
        for leak in &survey.leaks {
            self.below(&format!("{}     {}", describe(leak), mend(leak, self.root)));
        }
        if !survey.kept.is_empty() {
            let kept = count(survey.kept.len(), "sandbox that has ended is", "sandboxes that have ended are");
            self.line(
                State::Ok,
                &format!("{kept} kept with log and exit code until `penfold rm` or `penfold gc`"),
            );
        }
        if let Some(strays) = strays {
            self.strays(strays);
        }
        self.text
    }

    fn ability(&mut self, ability: &Ability) {
        self.line(ability.state, &ability.found);
        if ability.state != State::Ok {
            self.below(ability.meaning);
        }
        if let Some(mend) = &ability.mend {
            self.below(mend);
        }
    }

    fn level(&mut self, level: &LevelAbility, said: &[Ability]) {
        // The reason is mostly one of the abilities above.
        let reason = if said.iter().any(|ability| ability.found.ends_with(&level.reason)) {
            String::new()
        } else {
            format!(": {}", level.reason)
        };
        let can = if level.available { "" } else { " cannot be had" };
        let state = if level.available { State::Ok } else { State::Warn };
        self.line(state, &format!("--contain {}{can}{reason}", level.level));
    }

    fn line(&mut self, state: State, words: &str) {
        if self.quiet && state == State::Ok {
            return;
        }
        let (tag, colour) = match state {
            State::Ok => ("[ok]  ", "32"),
            State::Warn => ("[warn]", "33"),
            State::Fail => ("[fail]", "31"),
        };
        if self.coloured {
            // Writing to a String cannot fail.
            let _ = write!(self.text, "\u{1b}[{colour}m{tag}\u{1b}[0m ");
        } else {
            self.text.push_str(tag);
            self.text.push(' ');
        }
        lines::push(&mut self.text, words);
        self.text.push('\n');
    }

    fn below(&mut self, words: &str) {
        self.text.push_str("         ");
        lines::push(&mut self.text, words);
        self.text.push('\n');
    }
}
