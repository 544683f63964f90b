//! Who requested the end of a sandbox, in words.

use penfold_state::Requester;

use crate::text::template;
use crate::value;

/// The words after "stopped": `` by `penfold stop` (pid 4121, user 1000)``, ` by Ctrl-C`; empty if unknown.
pub(crate) fn words(by: Option<&Requester>) -> String {
    let Some(by) = by else { return String::new() };
    let actor = match (&by.key, by.plain_verb(), by.signal) {
        (Some(key), ..) => template::printable(key),
        (None, Some(verb), _) => format!("`penfold {verb}`"),
        (None, None, Some(signal)) => format!("SIG{}", value::signal_name(signal)),
        (None, None, None) => return facts(by),
    };
    format!(" by {actor}{}", facts(by))
}

/// The pid and the user: ` (pid 4121, user 1000)`.
fn facts(by: &Requester) -> String {
    let pid = by.pid.map(|pid| format!("pid {pid}"));
    let facts: Vec<String> = pid.into_iter().chain(by.uid.map(|uid| format!("user {uid}"))).collect();
    if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 2.6
    #[test]
    fn a_few_words_say_who() {
        let some = |by: Requester| words(Some(&by));
        let someone = Requester { pid: Some(4121), uid: Some(1000), ..Requester::default() };
        let verb = Requester { command: Some("penfold rm -f".to_owned()), ..Requester::of_verb("rm") };
        assert_eq!(words(None), "");
        assert_eq!(some(verb.clone()), " by `penfold rm`");
        assert_eq!(
            some(Requester { pid: Some(4121), uid: Some(0), ..verb }),
            " by `penfold rm` (pid 4121, user 0)"
        );
        let term = Requester { signal: Some(15), ..someone.clone() };
        assert_eq!(some(term), " by SIGTERM (pid 4121, user 1000)");
        let key = Requester { signal: Some(2), key: Some("Ctrl-C".to_owned()), ..Requester::default() };
        assert_eq!(some(key), " by Ctrl-C");
        assert_eq!(some(Requester { signal: Some(1), ..Requester::default() }), " by SIGHUP");
        assert_eq!(some(Requester { uid: None, ..someone }), " (pid 4121)");
        assert_eq!(some(Requester::default()), "");
        // What another process says is no text for a terminal.
        assert_eq!(some(Requester::of_verb("stop\u{1b}[2J")), "");
    }
}
