//! Events as sentences, for a journal that people read.

use penfold_process::quote_words;
use penfold_teardown::Cause;

use crate::cause_words::cause_clause;

use super::{Event, EventKind, EventSubject};
use crate::outcome::ExitStatus;
use crate::requester::Requester;

/// Returns the syslog priority: 3 if something is left, 4 if something was or a restart is not made, else 6.
pub(super) fn event_priority(what: &EventKind) -> u8 {
    match what {
        EventKind::Leak { outcome, .. } if outcome != "ended" => 3,
        EventKind::Lost { verified: false, .. } => 3,
        EventKind::Leak { .. }
        | EventKind::Lost { .. }
        | EventKind::RmdirBusy { .. }
        | EventKind::NoRestart { .. } => 4,
        _ => 6,
    }
}

/// Returns the event as a sentence: `sandbox 3f9a1c2b7d04 (web) has ended: its command exited with 3`.
pub(super) fn event_sentence(event: &Event) -> String {
    let EventSubject { id, .. } = &event.about;
    let name = event.about.held_name().map_or_else(String::new, |name| format!(" ({name})"));
    format!("sandbox {id}{name} {}", predicate(&event.what))
}

fn predicate(what: &EventKind) -> String {
    match what {
        EventKind::Start { command, .. } => format!("has started: {}", quote_words(command)),
        EventKind::Exec { number, command } => format!("has started exec {number}: {}", quote_words(command)),
        EventKind::Exit { exit: None, .. } => "has ended: the exit of its command is not known".to_owned(),
        EventKind::Exit { exit: Some(exit), .. } => format!("has ended: its command {}", ended(*exit)),
        EventKind::Stop { cause, grace_ms: Some(ms), by } => {
            format!("is being stopped{}, with a grace of {ms} ms", reason(*cause, by.as_deref()))
        }
        EventKind::Stop { cause, grace_ms: None, by } => {
            format!("is being killed{}", reason(*cause, by.as_deref()))
        }
        EventKind::TeardownStep { step, took_us, error: None, .. } => {
            format!("has completed the step `{step}` in {took_us} us")
        }
        EventKind::TeardownStep { step, error: Some(error), .. } => {
            format!("has not completed the step `{step}`: {error}")
        }
        EventKind::RmdirBusy { path, tries, took_us, .. } => {
            format!("has removed its cgroup `{path}` after {tries} refusals in {took_us} us")
        }
        EventKind::Leak { what, outcome, .. } if outcome == "ended" => {
            format!("left processes, and penfold ended them: {what}")
        }
        EventKind::Leak { what, .. } => format!("is not gone: {what}"),
        EventKind::Lost { verified: true, .. } => {
            "had lost its supervisors; penfold ended the rest, and verified that nothing is left".to_owned()
        }
        EventKind::Lost { survivors, .. } => {
            format!("had lost its supervisors and is not gone; survivors: {survivors}")
        }
        EventKind::NoRestart { reason } => format!("is not restarted: {reason}"),
        EventKind::Adopted { pid, command } => format!("has adopted process {pid}: {}", quote_words(command)),
    }
}

fn ended(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("exited with {code}"),
        ExitStatus::Signal(signal) => format!("died of signal {signal}"),
    }
}

/// The reason of an end: ` by penfold stop`, `: time limit`.
fn reason(cause: Cause, by: Option<&Requester>) -> String {
    let requester = by.and_then(|by| match (&by.key, by.plain_verb(), by.signal) {
        (Some(key), ..) => Some(key.clone()),
        (None, Some(verb), _) => Some(format!("penfold {verb}")),
        (None, None, Some(signal)) => Some(format!("signal {signal}")),
        (None, None, None) => None,
    });
    match cause {
        Cause::Stop | Cause::Kill => {
            requester.map_or_else(String::new, |requester| format!(" by {requester}"))
        }
        // What its command has left ends.
        Cause::Exit | Cause::Signal | Cause::StartFailed => " because its command has ended".to_owned(),
        cause => cause_clause(cause).map_or_else(String::new, |clause| format!(" because {clause}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 28.3
    #[test]
    fn sentences_say_what_happened() {
        let about = EventSubject {
            id: "0123456789ab".to_owned(),
            name: Some("web".to_owned()),
            ..EventSubject::default()
        };
        let say =
            |what: EventKind| event_sentence(&Event { schema: 1, time_ns: 0, about: about.clone(), what });
        let by = Some(Box::new(Requester::of_verb("stop")));
        assert_eq!(
            say(EventKind::Stop { cause: Cause::Stop, grace_ms: Some(10), by }),
            "sandbox 0123456789ab (web) is being stopped by penfold stop, with a grace of 10 ms"
        );
        assert_eq!(
            say(EventKind::Stop { cause: Cause::Timeout, grace_ms: None, by: None }),
            "sandbox 0123456789ab (web) is being killed because its time limit was over"
        );
        let left = |outcome: &str| EventKind::Leak {
            what: "sleep 50 (pid 7)".to_owned(),
            outcome: outcome.to_owned(),
            reason: None,
        };
        assert_eq!((event_priority(&left("ended")), event_priority(&left("not gone"))), (4, 3));
        assert_eq!(say(left("not gone")), "sandbox 0123456789ab (web) is not gone: sleep 50 (pid 7)");
    }
}
