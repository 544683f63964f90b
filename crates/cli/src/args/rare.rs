//! [`Rare`], a group of flags that few command lines have.

use std::ops::{Deref, DerefMut};

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Id};

/// A group of flags that few command lines have. It adds nothing to the definition of a verb: where all flags are wanted, those of
/// `T` are added, too. Its value is the default without them, and if none of them was given.
///
/// Each flag of a definition costs every start more than a microsecond.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rare<T>(T);

impl<T> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Rare<T> {
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

impl<T: Args + Default> FromArgMatches for Rare<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        // An error if the flags are not defined; false if none was given.
        let is_given =
            T::group_id().is_some_and(|id| matches!(matches.try_contains_id(id.as_str()), Ok(true)));
        if is_given { T::from_arg_matches_mut(matches).map(Rare) } else { Ok(Rare::default()) }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args + Default> Args for Rare<T> {
    fn group_id() -> Option<Id> {
        None
    }

    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
