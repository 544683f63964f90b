//! The ends of sandboxes that were asked for, and what became of them.

use std::collections::HashMap;

use penfold_control::StopResult;

use crate::model::Ending;

/// One end.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Under(Ending),
    Gone,
    Failed(String),
}

/// The ends, by the id of the sandbox.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    all: HashMap<String, State>,
}

impl Endings {
    /// Notes that an end begins. False if the same or a stricter end is already under way: after a kill nothing is asked politely.
    pub(crate) fn begin(&mut self, id: &str, ending: Ending) -> bool {
        if let Some(State::Under(before)) = self.all.get(id)
            && (*before == ending || *before == Ending::Kill)
        {
            return false;
        }
        self.all.insert(id.to_owned(), State::Under(ending));
        true
    }

    /// Notes the result of an end.
    pub(crate) fn finish(&mut self, id: &str, ending: Ending, result: Result<StopResult, String>) {
        // A kill that overtook the stop says how it ended.
        if matches!(self.all.get(id), Some(State::Under(now)) if *now != ending) {
            return;
        }
        let state = match result {
            Ok(StopResult::Gone) => State::Gone,
            Ok(StopResult::Left(survivors)) => {
                let named: Vec<String> = survivors.iter().map(ToString::to_string).collect();
                State::Failed(format!("not gone: {}", named.join("; ")))
            }
            Ok(StopResult::Failed(error)) => State::Failed(format!("cannot end it: {error}")),
            Err(sentence) => State::Failed(sentence),
        };
        self.all.insert(id.to_owned(), state);
    }

    /// The word for the column with the status.
    pub(crate) fn word(&self, id: &str) -> Option<&'static str> {
        Some(match self.all.get(id)? {
            State::Under(Ending::Stop) => "stopping…",
            State::Under(Ending::Kill) => "killing…",
            State::Gone => "gone (verified)",
            State::Failed(_) => "not gone",
        })
    }

    /// What there is to say about the end of a sandbox.
    pub(crate) fn sentence(&self, id: &str) -> Option<String> {
        Some(match self.all.get(id)? {
            State::Under(Ending::Stop) => format!("{id}: stopping…"),
            State::Under(Ending::Kill) => format!("{id}: killing…"),
            State::Gone => format!("{id}: gone (verified)"),
            State::Failed(why) => format!("{id}: {why}"),
        })
    }

    /// The sandboxes that are being ended, with the manner.
    pub(crate) fn unfinished(&self) -> Vec<(String, Ending)> {
        let under = |(id, state): (&String, &State)| match state {
            State::Under(ending) => Some((id.clone(), *ending)),
            _ => None,
        };
        let mut unfinished: Vec<(String, Ending)> = self.all.iter().filter_map(under).collect();
        unfinished.sort_by(|one, other| one.0.cmp(&other.0));
        unfinished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 2.5
    #[test]
    fn a_kill_overtakes_a_stop_and_no_stop_overtakes_a_kill() {
        let mut endings = Endings::default();
        assert!(endings.begin("a", Ending::Stop) && !endings.begin("a", Ending::Stop));
        assert!(endings.begin("a", Ending::Kill) && !endings.begin("a", Ending::Stop));
        endings.finish("a", Ending::Stop, Err("it was killed".to_owned()));
        assert_eq!(endings.word("a"), Some("killing…"));
        assert_eq!(endings.unfinished(), [("a".to_owned(), Ending::Kill)]);
        endings.finish("a", Ending::Kill, Ok(StopResult::Gone));
        assert_eq!(endings.word("a"), Some("gone (verified)"));
        assert!(endings.unfinished().is_empty());
    }

    #[test]
    fn gone_is_said_of_nothing_else() {
        let mut endings = Endings::default();
        for result in [
            Ok(StopResult::Left(Vec::new())),
            Ok(StopResult::Failed(std::io::ErrorKind::PermissionDenied.into())),
            Err("no sandbox is called `a`".to_owned()),
        ] {
            endings.begin("a", Ending::Kill);
            endings.finish("a", Ending::Kill, result);
            assert_eq!(endings.word("a"), Some("not gone"));
        }
    }
}
