//! `penfold doctor`: what it does.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_sandbox::abilities::{self, Abilities, Ability, LevelAbility, State};
use penfold_sandbox::leaks::{self, Leak, Survey, Thing};
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
}

/// Looks at the host and at what was left on it.
pub(crate) fn doctor(global: &Global, args: &DoctorArgs) -> Result<u8, Failure> {
    let blind = |error| Failure::new(exit_codes::DOCTOR_BLIND, "cannot look at this host").because(error);
    let root = state::root(global);
    // Leaks first: what the tries of the abilities make is none.
    let survey = leaks::look(&root, &temporary()).map_err(blind)?;
    let makeshift = global.root.is_none() && root.starts_with("/tmp");
    let abilities = abilities::look(&root, makeshift).map_err(blind)?;
    let fine = abilities.abilities.iter().all(|ability| ability.state == State::Ok);
    let clean = fine && survey.leaks.is_empty() && survey.complete && survey.unread.is_empty();
    if args.json {
        let diagnosis = Diagnosis {
            schema: penfold_teardown::report::SCHEMA,
            clean,
            abilities: &abilities,
            survey: &survey,
        };
        lines::json(&diagnosis, exit_codes::DOCTOR_BLIND)?;
    } else {
        let coloured = global.color.wanted(&std::io::stdout());
        let page = Page { text: String::new(), root: global.root.as_deref(), coloured, quiet: global.quiet };
        let text = page.all(&abilities, &survey);
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
        Thing::Record { path, command, begun: true } if command.is_empty() => {
            format!("record {}", path.display())
        }
        Thing::Record { command, begun: true, .. } => format!("sandbox {} `{command}`", leak.id),
        Thing::Record { path, .. } => format!("record {}, never used", path.display()),
        Thing::Processes => format!("processes of {}", leak.id),
        Thing::Cgroup { path } => format!("cgroup {}", path.display()),
        Thing::Directory { path } => format!("directory {}", path.display()),
    };
    let why = match &leak.thing {
        Thing::Record { begun: true, .. } => "its supervisors are gone",
        Thing::Record { .. } => "its maker is gone",
        _ => "no record",
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
    format!("{text}, {} old, {why}", old(leak.age()))
}

fn old(age: Duration) -> String {
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
    let young = if leak.is_certain() || leak.age() >= crate::gc::USUAL_AGE { "" } else { " --older-than 0" };
    format!("penfold{root} gc{young}")
}

struct Page<'a> {
    text: String,
    root: Option<&'a Path>,
    coloured: bool,
    quiet: bool,
}

impl Page<'_> {
    fn all(mut self, found: &Abilities, survey: &Survey) -> String {
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
