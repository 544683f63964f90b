//! Looks at the sandboxes in a thread of its own, so that no key waits for the host.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::{Detail, Page, Sandbox, Source};

/// The time between two looks at everything.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time before the second look, without which no use of CPU is known.
const SECOND_LOOK: Duration = Duration::from_millis(200);
/// The time between two looks at an open log.
const LOG_INTERVAL: Duration = Duration::from_millis(250);
/// The time that a sandbox stays in the list after its end.
const KEPT: Duration = Duration::from_secs(30);

/// What one look has found.
#[derive(Debug)]
pub(crate) struct Looked {
    /// The list; `None` if only the page was looked at.
    pub(crate) listed: Option<Result<Vec<Sandbox>, String>>,
    pub(crate) details: HashMap<String, Detail>,
    pub(crate) page: Page,
    pub(crate) lines: Result<Vec<String>, String>,
}

/// What the screen shows.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) page: Page,
    /// The sandboxes in the rows.
    pub(crate) visible: Vec<String>,
}

/// What the screen shows, for the thread that looks.
#[derive(Debug)]
pub(crate) struct Wanted {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    shown: Shown,
    is_changed: bool,
    is_over: bool,
}

impl Wanted {
    pub(crate) fn new(shown: Shown) -> Wanted {
        let state = State { shown, is_changed: false, is_over: false };
        Wanted { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Has what the screen shows now looked at, at once if `at_once`.
    pub(crate) fn show(&self, shown: Shown, at_once: bool) {
        let mut state = self.lock();
        state.is_changed |= at_once;
        state.shown = shown;
        drop(state);
        if at_once {
            self.changed.notify_all();
        }
    }

    /// Ends the thread after its present look.
    pub(crate) fn finish(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the screen shows something else, or for this time; `None` once it is over.
    fn wait(&self, time: Duration) -> Option<Shown> {
        let waits = |state: &mut State| !state.is_changed && !state.is_over;
        let waited = self.changed.wait_timeout_while(self.lock(), time, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_changed = false;
        (!state.is_over).then(|| state.shown.clone())
    }
}

/// Looks until it is over, or until nobody takes what was found.
pub(crate) fn refresh_until_over(
    mut source: Box<dyn Source>,
    wanted: &Wanted,
    mut take: impl FnMut(Looked) -> bool,
) {
    let mut memory = Memory::default();
    let mut due = Instant::now();
    let mut is_first = true;
    let mut pause = Duration::ZERO;
    while let Some(shown) = wanted.wait(pause) {
        let now = Instant::now();
        let listed = (now >= due).then(|| memory.list(source.as_mut(), &shown.page, now));
        if listed.is_some() {
            due = now + if is_first { SECOND_LOOK } else { INTERVAL };
            is_first = false;
        }
        let looked = memory.looked(source.as_mut(), &shown, listed);
        if !take(looked) {
            return;
        }
        let until_due = due.saturating_duration_since(Instant::now());
        pause = if matches!(shown.page, Page::Log(_)) { until_due.min(LOG_INTERVAL) } else { until_due };
    }
}

/// The sandboxes of the last look.
#[derive(Debug, Default)]
struct Memory {
    living: HashSet<String>,
    order: Vec<String>,
    ended: Vec<(Instant, Sandbox)>,
}

impl Memory {
    /// Lists the living sandboxes, and after them those that have ended lately or have an open page.
    fn list(&mut self, source: &mut dyn Source, page: &Page, now: Instant) -> Result<Vec<Sandbox>, String> {
        let mut rows = source.list()?;
        let living: HashSet<String> = rows.iter().map(|row| row.id.clone()).collect();
        let open = page.sandbox().map(str::to_owned).into_iter();
        let known: Vec<String> = std::mem::take(&mut self.order).into_iter().chain(open).collect();
        for id in known {
            let is_new = !living.contains(&id) && !self.ended.iter().any(|(_, row)| row.id == id);
            if is_new && let Some(row) = source.ended(&id) {
                self.ended.push((now, row));
            }
        }
        let is_kept = |(since, row): &(Instant, Sandbox)| {
            let is_young = now.saturating_duration_since(*since) < KEPT;
            !living.contains(&row.id) && (is_young || page.sandbox() == Some(&row.id))
        };
        self.ended.retain(is_kept);
        self.order = rows.iter().map(|row| row.id.clone()).collect();
        self.living = living;
        rows.extend(self.ended.iter().rev().map(|(_, row)| row.clone()));
        Ok(rows)
    }

    fn looked(
        &self,
        source: &mut dyn Source,
        shown: &Shown,
        listed: Option<Result<Vec<Sandbox>, String>>,
    ) -> Looked {
        let lines = match &shown.page {
            Page::Tree(id) if self.living.contains(id) => source.tree(id),
            Page::Table | Page::Tree(_) => Ok(Vec::new()),
            Page::Log(id) => source.log(id),
        };
        let details = shown.visible.iter().map(|id| (id.clone(), source.detail(id))).collect();
        Looked { listed, details, page: shown.page.clone(), lines }
    }
}

#[cfg(test)]
mod tests;
