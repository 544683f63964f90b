//! Looks at the sandboxes for `penfold top`.

use std::collections::HashMap;
use std::time::Instant;

use penfold_control::{CpuRates, Meter, Resolver, SandboxRef, SandboxUsage, SandboxView, view};
use penfold_process::{Listeners, Pid};
use penfold_state::log::{LogEntry, LogError, LogPosition, LogReader};
use penfold_state::state::Status;
use penfold_state::time::now_ms;
use penfold_top::{Detail, Sandbox, Source, StatusColour};

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::sandboxes::find::{self, Among};
use crate::text::process_tree::{self, Style};
use crate::text::row::numbers;
use crate::text::{template, terminal_output};

/// The bytes of a log that can be scrolled back to.
const SCROLL: u64 = 128 * 1024;
/// The bytes of a log that are read for its last line.
const LAST_LINE: u64 = 4 * 1024;

/// A sandbox of the last list.
#[derive(Debug)]
struct ListedSandbox {
    known: SandboxRef,
    view: SandboxView,
    pids: Vec<Pid>,
}

/// Looks at the sandboxes, and remembers the last look.
pub(super) struct Looker {
    resolver: Resolver,
    meter: Meter,
    rates: CpuRates,
    seen: HashMap<String, ListedSandbox>,
    /// Read anew with each list: the tables of a network namespace hold all its sockets.
    listeners: Listeners,
}

impl Looker {
    pub(super) fn new(global: &Global) -> Result<Looker, Failure> {
        Ok(Looker {
            resolver: find::resolver(global),
            meter: Meter::open().or_fail(FailureKind::Other, "cannot read the processes")?,
            rates: CpuRates::default(),
            seen: HashMap::new(),
            listeners: Listeners::default(),
        })
    }

    /// The record of a sandbox, even if it has ended.
    fn find(&self, id: &str) -> Option<SandboxRef> {
        let seen = self.seen.get(id).map(|seen| seen.known.clone());
        seen.or_else(|| self.resolver.resolve(id).ok()).filter(|known| known.id == id)
    }
}

impl Source for Looker {
    fn list(&mut self) -> Result<Vec<Sandbox>, String> {
        self.resolver = self.resolver.again();
        self.listeners = Listeners::default();
        let found = find::list(&self.resolver, Among::Living).map_err(|failure| failure.sentence())?;
        self.seen.clear();
        let mut rows = Vec::new();
        let now = now_ms();
        for (known, view) in found.into_iter().rev() {
            let (usage, pids) = self.meter.read(&self.resolver, &known, &view);
            let percent = self.rates.percent(&known.id, &usage, Instant::now());
            rows.push(row(&view, Some(usage), percent, now));
            self.seen.insert(known.id.clone(), ListedSandbox { known, view, pids });
        }
        self.rates.retain(|id| self.seen.contains_key(id));
        Ok(rows)
    }

    fn ended(&mut self, id: &str) -> Option<Sandbox> {
        let known = self.find(id)?;
        let view = view::observe_sandbox(&self.resolver, &known)?;
        Some(row(&view, None, None, now_ms()))
    }

    fn detail(&mut self, id: &str) -> Detail {
        let Some(seen) = self.seen.get(id) else { return Detail::default() };
        let ports = numbers(&self.listeners.of(&seen.pids));
        let output = output(&seen.known, LAST_LINE).unwrap_or_default();
        let mut lines = terminal_output::lines(&output);
        lines.retain(|line| !line.trim().is_empty());
        Detail { ports, last_line: lines.pop().unwrap_or_default() }
    }

    fn tree(&mut self, id: &str) -> Result<Vec<String>, String> {
        let Some(ListedSandbox { known, view, .. }) = self.seen.get(id) else { return Ok(Vec::new()) };
        let style = Style { pids: true, full: true };
        let members =
            find::members(&self.resolver, known, view, style.full).map_err(|failure| failure.sentence())?;
        Ok(process_tree::draw(view, &members, style).lines().map(str::to_owned).collect())
    }

    fn log(&mut self, id: &str) -> Result<Vec<String>, String> {
        let known = self.find(id).ok_or("its record is gone, and its log with it")?;
        match output(&known, SCROLL) {
            Ok(bytes) => Ok(terminal_output::lines(&bytes)),
            Err(LogError::Missing) => Err("no log: only a sandbox of `penfold run -d` has one".to_owned()),
            Err(error) => Err(template::printable(&penfold_state::error_chain(&error))),
        }
    }
}

fn row(view: &SandboxView, usage: Option<SandboxUsage>, cpu_percent: Option<f64>, now: u64) -> Sandbox {
    let mood = match view.status {
        _ if !view.damage.is_empty() => StatusColour::Wrong,
        Status::Running => StatusColour::Running,
        Status::Created | Status::Paused | Status::Waiting | Status::Stopping => StatusColour::Passing,
        Status::Unkillable | Status::Orphaned | Status::Lost => StatusColour::Wrong,
        Status::Exited | Status::Failed | Status::Killed => StatusColour::Ended,
    };
    Sandbox {
        id: view.id.clone(),
        name: view.name.as_deref().map(template::printable),
        status: template::status(view, now),
        colour: mood,
        cpu_percent,
        usage,
        lease: view.expires_at_ms.map_or_else(|| "-".to_owned(), |at| template::ago(now, at)),
        command: template::printable(&template::command(view)),
    }
}

/// About so many bytes at the end of an output, from the beginning of a line.
///
/// Neither a log without line feeds nor a writer that is faster than this reader makes it longer.
fn output(known: &SandboxRef, most: u64) -> Result<Vec<u8>, LogError> {
    let Some(files) = &known.record else { return Err(LogError::Missing) };
    let mut reader = LogReader::open(files.dir(), LogPosition::Start)?;
    let end = reader.end();
    let is_cut = end > most;
    if is_cut {
        reader = LogReader::open(files.dir(), LogPosition::Offset(end - most))?;
    }
    let mut bytes = Vec::new();
    while reader.offset() < end
        && let Some(entry) = reader.next_entry()?
    {
        if let LogEntry::Data { bytes: some, .. } = entry {
            bytes.extend_from_slice(some);
        }
    }
    let line = bytes.iter().position(|&byte| byte == b'\n').filter(|_| is_cut);
    Ok(match line {
        Some(feed) => bytes.split_off(feed + 1),
        None => bytes,
    })
}
