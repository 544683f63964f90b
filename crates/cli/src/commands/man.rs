//! `penfold man`.

use std::path::{Path, PathBuf};

use clap::Args;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{command_line, find, help};
use crate::args::usage;
use crate::args::verb::{Places, Verb};
use crate::exit_codes::{self, Group};
use crate::failure::{Failure, FailureKind, OrFail as _};

/// The verb `man`.
pub(crate) const VERB: Verb = Verb {
    name: "man",
    aliases: &[],
    about: "Write the manual pages",
    description: "Writes manual pages into an existing directory: for penfold, for each command, and for each topic of `penfold help`.",
    examples: &[
        ("penfold man /usr/local/share/man/man1", "install the manual pages"),
        ("penfold man . && man ./penfold-run.1", "read the manual page of `penfold run`"),
    ],
    usage_failure: FailureKind::Usage,
    define: ManArgs::augment_args,
    places: Places::Here,
    call: |_, matches| man(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct ManArgs {
    /// The directory for the manual pages.
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: PathBuf,
}

fn man(args: &ManArgs) -> Result<u8, Failure> {
    let sentence = format!("cannot write manual pages to `{}`", args.dir.display());
    write_all(&args.dir).or_fail(FailureKind::Other, &sentence)?;
    Ok(exit_codes::SUCCESS)
}

fn write_all(dir: &Path) -> std::io::Result<()> {
    let mut root = command_line::root();
    root.build();
    for command in root.get_subcommands().chain([&root]) {
        let man = Man::new(command.clone());
        let mut page = Vec::new();
        man.render(&mut page)?;
        let verb = find(command.get_name());
        sections(verb).to_writer(&mut page)?;
        std::fs::write(dir.join(man.get_filename()), page)?;
    }
    for topic in help::TOPICS {
        let mut page = Roff::new();
        let name = format!("penfold-{topic}");
        page.control("TH", [name.as_str(), "1"]);
        page.control("SH", ["NAME"]);
        page.text([roman(format!("{name} - {}", help::about(topic)))]);
        page.control("SH", ["DESCRIPTION"]);
        page.control("nf", []);
        page.text([roman(help::topic(topic).unwrap_or_default())]);
        page.control("fi", []);
        std::fs::write(dir.join(format!("{name}.1")), page.to_roff())?;
    }
    Ok(())
}

/// The sections that every page has: exit codes, variables, files.
fn sections(verb: Option<&Verb>) -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["EXIT STATUS"]);
    let groups = exit_codes::TABLE.iter().filter(|group| verb.is_none_or(|verb| group.is_of(verb.name)));
    for Group { verbs, codes } in groups {
        if verb.is_none() {
            page.control("SS", [*verbs]);
        }
        entries(&mut page, codes.iter().map(|(code, meaning)| (code.to_string(), *meaning)));
    }
    page.control("SH", ["ENVIRONMENT"]);
    entries(&mut page, help::VARIABLES.iter().map(|(name, meaning)| ((*name).to_owned(), *meaning)));
    page.control("SH", ["FILES"]);
    entries(&mut page, help::FILES.iter().map(|(name, meaning)| ((*name).to_owned(), *meaning)));
    page.control("SH", ["SEE ALSO"]);
    let pages: Vec<String> = help::TOPICS.iter().map(|topic| format!("penfold-{topic}(1)")).collect();
    page.text([roman(format!("penfold(1), {}", pages.join(", ")))]);
    page
}

fn entries<'a>(page: &mut Roff, entries: impl Iterator<Item = (String, &'a str)>) {
    for (name, meaning) in entries {
        page.control("TP", []);
        page.text([bold(name)]);
        page.text([roman(meaning)]);
    }
}
