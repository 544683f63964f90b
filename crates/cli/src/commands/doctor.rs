//! `penfold doctor`.

mod scope;
mod strays;
mod token_files;
mod vms;

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use penfold_doctor::foreign::{self, Strays, VmState};
use penfold_doctor::host_checks::{self, Abilities, Ability, LevelAbility, State};
use penfold_doctor::leaks::{self, Leak, Survey, Thing, USUAL_AGE, describe_leak};
use serde::Serialize;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::output::{self, WriteError};
use crate::sandboxes::other_roots;
use crate::text::leak::reap_as_root;
use crate::text::lines::{self, count};
use crate::{exit_codes, surroundings};

/// The verb `doctor`.
pub(crate) const VERB: Verb = Verb {
    name: "doctor",
    aliases: &[],
    about: "Check what this host can do, and find leaks; changes nothing",
    description: "Checks the host: kernel, cgroup mounts and delegation, pidfd, namespaces, limits, and what each of them \
        means for the guarantee. Names other state roots of this user with living sandboxes. Then searches for leaks and prints the command that removes each. With --foreign also \
        searches for strays of other tools. Such a stray is an orphan with a session of its own, without a terminal, \
        and no service; or its environment names the session of a dead owner. --foreign also lists the virtual machines \
        that penfold did not start, with the processes above them. Changes nothing.",
    examples: &[
        ("penfold doctor", "check why the containment is weaker on this host"),
        (
            "penfold doctor --foreign",
            "list virtual machines, and processes that agents, editors and builds left behind",
        ),
        ("penfold doctor --json", "print JSON; the exit code is 0 no leaks, 1 leaks, 2 could not check"),
        ("penfold doctor --strict", "exit with 1 also if the host has only warnings"),
    ],
    usage_failure: FailureKind::ChecksFailed,
    define: DoctorArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| doctor(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold doctor`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Also list strays and virtual machines of other tools; penfold does not end them.
    #[arg(long)]
    pub(crate) foreign: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit with 1 also for warnings.
    #[arg(long)]
    pub(crate) strict: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Diagnosis<'a> {
    schema: u32,
    clean: bool,
    #[serde(flatten)]
    abilities: &'a Abilities,
    #[serde(flatten)]
    survey: &'a Survey,
    /// The number of kept records of ended sandboxes.
    ended: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign: Option<&'a Strays>,
}

/// Checks the host and searches for leaks.
pub(crate) fn doctor(global: &Global, args: &DoctorArgs) -> Result<u8, Failure> {
    let unwritten = |error: WriteError| Failure::from(error).with_kind(FailureKind::ChecksFailed);
    let root = surroundings::root(global);
    // Leaks first: the checks of the host create cgroups and directories that are no leaks.
    let survey = leaks::find_leaks(&root, &[surroundings::temporary()])
        .unwrap_or_else(|error| Survey { unread: vec![error.to_string()], ..Survey::default() });
    let makeshift = global.root.is_none() && root.starts_with("/tmp");
    let mut abilities = host_checks::check_host(&root, makeshift)
        .or_fail(FailureKind::ChecksFailed, "cannot check this host")?;
    if let Some(trial) = scope::trial() {
        abilities.add_scope(&trial);
    }
    let others = other_roots::with_living(global);
    abilities.abilities.extend(others.iter().map(|(root, living)| host_checks::other_root(root, *living)));
    abilities.abilities.extend(token_files::open_to_others(global, &root));
    let worst = |states: &[State]| abilities.abilities.iter().any(|ability| states.contains(&ability.state));
    let (fine, works) = (!worst(&[State::Warn, State::Fail]), !worst(&[State::Fail]));
    let strays = if args.foreign {
        Some(
            foreign::find_foreign_trees(&surroundings::protected(global))
                .or_fail(FailureKind::ChecksFailed, "cannot search the processes of this host")?,
        )
    } else {
        None
    };
    let is_alone = |found: &Strays| {
        found.complete && found.strays.is_empty() && found.vms.iter().all(|vm| vm.state == VmState::Managed)
    };
    let lonely = strays.as_ref().is_none_or(is_alone);
    let no_leaks = survey.leaks.is_empty() && survey.complete && survey.unread.is_empty() && lonely;
    let clean = fine && no_leaks;
    let passes = no_leaks && if args.strict { fine } else { works };
    if args.json {
        let diagnosis = Diagnosis {
            schema: penfold_teardown::report::SCHEMA,
            clean,
            abilities: &abilities,
            survey: &survey,
            ended: survey.kept.len(),
            foreign: strays.as_ref(),
        };
        output::json(&diagnosis).map_err(unwritten)?;
    } else {
        let coloured = global.color.wanted(&std::io::stdout());
        let page = Page {
            text: String::new(),
            root: global.root.as_deref(),
            coloured,
            quiet: global.quiet,
            width: output::data_width(),
        };
        let text = page.all(&abilities, &survey, strays.as_ref());
        output::data(text.as_bytes()).map_err(unwritten)?;
    }
    Ok(if passes { exit_codes::DOCTOR_CLEAN } else { exit_codes::DOCTOR_FOUND })
}

/// The command that removes a leak.
fn removal_command(leak: &Leak, root: Option<&Path>) -> String {
    let root = root.map_or_else(String::new, |root| format!(" --root {}", root.display()));
    let id = if leak.id.is_empty() { "--kind name" } else { &leak.id };
    if let Thing::Survivor { is_refused: true, pids, .. } = &leak.thing {
        let id =
            |pid: i32| leak.processes.iter().map(|member| member.id).find(|id| id.pid.as_raw_pid() == pid);
        return reap_as_root(pids.iter().map(|&pid| (pid, id(pid))));
    }
    if leak.is_alive() || matches!(leak.thing, Thing::Survivor { .. }) {
        return format!("penfold{root} kill {id}");
    }
    let young = if leak.is_certain() || leak.age() >= USUAL_AGE { "" } else { " --older-than 0" };
    format!("penfold{root} gc{young} {id}")
}

/// The blanks below a tag.
const TAG: &str = "       ";
/// The blanks before what explains a line.
const BELOW: &str = "         ";
/// The room for words, however narrow the terminal is.
const LEAST_WORDS: usize = 20;

struct Page<'a> {
    text: String,
    root: Option<&'a Path>,
    coloured: bool,
    quiet: bool,
    /// The columns of the terminal, if there is one.
    width: Option<usize>,
}

impl Page<'_> {
    fn all(mut self, found: &Abilities, survey: &Survey, strays: Option<&Strays>) -> String {
        let (survivors, leaks): (Vec<&Leak>, Vec<&Leak>) =
            survey.leaks.iter().partition(|leak| matches!(leak.thing, Thing::Survivor { .. }));
        for leak in &survivors {
            self.survivors(leak);
        }
        for ability in &found.abilities {
            self.ability(ability);
        }
        for level in &found.levels {
            self.level(level, &found.abilities);
        }
        for unread in &survey.unread {
            self.line(State::Warn, &format!("incomplete search: {unread}"));
        }
        if leaks.is_empty() {
            let whole = survey.complete && survey.unread.is_empty();
            let other = if survivors.is_empty() { "" } else { "other " };
            let seen = if whole { "" } else { " seen" };
            self.line(if whole { State::Ok } else { State::Warn }, &format!("no {other}leaks of ours{seen}"));
        } else {
            self.line(State::Fail, &format!("{} of ours", count(leaks.len(), "leak", "leaks")));
        }
        for leak in leaks {
            self.below(&format!("{}     {}", describe_leak(leak), removal_command(leak, self.root)));
        }
        if !survey.kept.is_empty() {
            let kept = count(survey.kept.len(), "ended sandbox is", "ended sandboxes are");
            self.line(
                State::Ok,
                &format!("{kept} kept with log and exit code until `penfold rm` or `penfold gc`"),
            );
        }
        if let Some(strays) = strays {
            self.strays(strays);
            self.vms(strays);
        }
        self.text
    }

    /// Names the members of a sandbox that could not be ended, and the command that would end them.
    fn survivors(&mut self, leak: &Leak) {
        let Thing::Survivor { supervised, reasons, .. } = &leak.thing else { return };
        let next = if *supervised { "its supervisor goes on to try" } else { "it has no supervisor" };
        self.line(State::Fail, &format!("sandbox {} could not be ended; {next}", leak.id));
        for reason in reasons {
            self.below(reason);
        }
        self.below(&removal_command(leak, self.root));
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
        // Omit a reason that a line above already prints.
        let reason = if said.iter().any(|ability| ability.found.ends_with(&level.reason)) {
            String::new()
        } else {
            format!(": {}", level.reason)
        };
        let can = if level.available { "" } else { " is not available" };
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
        self.words(words, TAG);
    }

    fn below(&mut self, words: &str) {
        self.text.push_str(BELOW);
        self.words(words, BELOW);
    }

    /// Adds the words of a line, wrapped to the terminal. Further lines begin with `indent`, as wide as what is there.
    fn words(&mut self, words: &str, indent: &str) {
        let mut clean = String::new();
        lines::push(&mut clean, words);
        let Some(width) = self.width else {
            self.text.push_str(&clean);
            self.text.push('\n');
            return;
        };
        let options = textwrap::Options::new(width.max(indent.len() + LEAST_WORDS))
            .initial_indent(indent)
            .subsequent_indent(indent)
            .break_words(false)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        let wrapped = textwrap::fill(&clean, options);
        self.text.push_str(wrapped.strip_prefix(indent).unwrap_or(&wrapped));
        self.text.push('\n');
    }
}
