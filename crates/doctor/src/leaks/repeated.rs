//! Searches again before something counts as a leak.
//!
//! A sandbox that starts or ends during a search looks like a leak: its record may be made after the records were read. Only
//! the lock of a record is proof in one look.

use std::io;

use rustix::event::{Timespec, poll};

use super::Survey;

/// The number of searches that must find a leak.
const LOOKS: usize = 3;

/// Waits between two searches, longer than a start or a release takes.
pub(super) fn pause_between_searches() {
    let _ = poll(&mut [], Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
}

/// Returns the last of up to three searches, without what an earlier one did not find. One search is enough if all its leaks
/// are certain.
pub(super) fn find_repeated_leaks(
    mut search: impl FnMut() -> io::Result<Survey>,
    mut pause: impl FnMut(),
) -> io::Result<Survey> {
    let mut survey = search()?;
    for _ in 1..LOOKS {
        if survey.leaks.iter().all(super::Leak::is_certain) {
            break;
        }
        pause();
        let earlier = std::mem::replace(&mut survey, search()?);
        survey
            .leaks
            .retain(|leak| leak.is_certain() || earlier.leaks.iter().any(|other| other.is_same(leak)));
    }
    Ok(survey)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{Leak, Thing};
    use super::*;

    fn leak(name: &str, thing: Thing) -> Leak {
        let id = name.to_owned();
        Leak { id, name: None, thing, processes: Vec::new(), age_s: 60, claimed: true }
    }

    fn link(name: &str) -> Leak {
        leak(name, Thing::Link { name: name.to_owned() })
    }

    /// Returns the ids that are left after these searches, and the number of pauses.
    fn ids(searches: Vec<Vec<Leak>>) -> (Vec<String>, usize) {
        let (mut searches, mut pauses) = (searches.into_iter(), 0);
        let search = || Ok(Survey { leaks: searches.next().unwrap(), ..Survey::default() });
        let found = find_repeated_leaks(search, || pauses += 1).unwrap();
        (found.leaks.into_iter().map(|leak| leak.id).collect(), pauses)
    }

    /// spec: 5.17
    #[test]
    fn what_is_not_there_each_time_is_no_leak() {
        let both = || vec![link("a"), link("b")];
        assert_eq!(ids(vec![both(), both(), both()]), (vec!["a".to_owned(), "b".to_owned()], 2));
        assert_eq!(ids(vec![both(), both(), vec![link("b")]]), (vec!["b".to_owned()], 2));
        assert_eq!(ids(vec![vec![link("a")], both(), both()]), (vec!["a".to_owned()], 2));
        assert_eq!(ids(vec![both(), vec![]]), (vec![], 1));
    }

    /// spec: 5.17
    #[test]
    fn what_is_certain_is_looked_for_once() {
        let lost = || Thing::Record { path: PathBuf::from("/r"), command: String::new(), begun: true };
        assert_eq!(ids(vec![vec![leak("r", lost())]]), (vec!["r".to_owned()], 0));
        assert_eq!(ids(vec![vec![]]), (vec![], 0));
        // It is listed even if only the last search found it.
        assert_eq!(ids(vec![vec![link("a")], vec![leak("r", lost())]]), (vec!["r".to_owned()], 1));
    }
}
