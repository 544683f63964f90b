//! `penfold top`.

mod actions;
mod source;

use std::io::IsTerminal as _;
use std::sync::Arc;

use clap::Args;
use penfold_sys::signal::{self, SignalFd, SignalSet};
use penfold_top::{Ending, Settings};
use rustix::process::Signal;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::sandboxes::find;
use crate::text::lines;
use crate::{exit_codes, output};

use actions::HostActions;
use source::Looker;

/// The verb `top`.
pub(crate) const VERB: Verb = Verb {
    name: "top",
    aliases: &[],
    about: "Watch sandboxes on the terminal: CPU, memory, ports, output",
    description: "Shows the sandboxes with live members, each second: name, status, CPU in percent of one CPU, memory, processes, \
        listening TCP ports, the rest of the lease, and the last line of the output. With an ID it begins with the processes \
        of that sandbox. Keys: enter shows the processes as a tree, l follows the output, s stops, k kills after a question, \
        / filters, ? helps, q quits. The screen names the command for each key. A sandbox that is ended here counts as gone \
        only when that was verified. Needs a terminal; `penfold stats --json` prints the numbers for programs.",
    examples: &[
        ("penfold top", "watch all sandboxes"),
        ("penfold top web", "watch the processes of one sandbox"),
        ("penfold top --root /srv/penfold", "watch the sandboxes below another state root"),
    ],
    usage_failure: FailureKind::Usage,
    define: TopArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| top(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold top`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    /// Id, unique prefix of an id, or name of the sandbox to begin with.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
}

/// The signals that end the view or suspend it.
const SIGNALS: [Signal; 4] = [Signal::TERM, Signal::HUP, Signal::INT, Signal::TSTP];

/// Shows the sandboxes until a key or a signal ends it.
pub(crate) fn top(global: &Global, args: &TopArgs) -> Result<u8, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let sentence = "`penfold top` needs a terminal on standard input and standard output";
        return Err(Failure::new(FailureKind::Usage, sentence)
            .hint("`penfold stats --no-stream` prints the numbers once"));
    }
    let open = args.id.as_ref().map(|word| find::resolver(global).resolve(word)).transpose()?;
    restore_after_panic();
    let set = SignalSet::of(SIGNALS.into_iter().map(Signal::as_raw));
    signal::block_signals(&set).or_fail(FailureKind::Other, "cannot block signals")?;
    let signals = SignalFd::open(&set).or_fail(FailureKind::Other, "cannot wait for signals")?;
    let end = penfold_top::run_view(Settings {
        source: Box::new(Looker::new(global)?),
        actions: Arc::new(HostActions::new(global)),
        open: open.map(|known| known.id),
        has_colour: global.color.wanted(&std::io::stdout()),
        signals,
    });
    let end = end.or_fail(FailureKind::Other, "cannot show the sandboxes")?;
    for (id, ending) in end.unfinished {
        let verb = match ending {
            Ending::Stop => "stop",
            Ending::Kill => "kill",
        };
        let mut text = String::new();
        lines::say(&mut text, &format!("{id} was not gone yet; `penfold {verb} {id}` waits for its end"));
        output::message(&text);
    }
    if let Some(number) = end.signal {
        signal::die_of(number);
        return Ok(exit_codes::SIGNALLED.saturating_add(u8::try_from(number).unwrap_or(0)));
    }
    Ok(exit_codes::SUCCESS)
}

/// Has the terminal restored before the hook for panics prints its sentence.
fn restore_after_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        penfold_top::restore_terminal();
        print(info);
    }));
}
