//! Which flags of `run` are defined: all, or the usual ones where a command line has no others.

use std::ffi::OsString;

use clap::{Args, Command};

use super::end::SpareArgs;
use super::{RunArgs, detached, end, profile};
use crate::args::limits::LimitArgs;
use crate::args::resources::ResourceArgs;
use crate::args::user::UserArgs;

/// Adds all flags of `run`.
pub(crate) fn all(command: Command) -> Command {
    with_rare(RunArgs::augment_args(command))
}

/// Adds the flags of `run` that a command line needs: the usual ones if it has no others.
pub(crate) fn for_words(command: Command, words: impl Iterator<Item = OsString>) -> Command {
    let usual = RunArgs::augment_args(command);
    if has_all(&usual, words) { usual } else { with_rare(usual) }
}

/// Adds the flags that few command lines have.
fn with_rare(usual: Command) -> Command {
    let groups = [
        UserArgs::augment_args,
        detached::DetachedArgs::augment_args,
        detached::ReadyArgs::augment_args,
        LimitArgs::augment_args,
        ResourceArgs::augment_args,
        profile::ProfileArgs::augment_args,
        end::StopArgs::augment_args,
        SpareArgs::augment_args,
    ];
    groups.into_iter().fold(usual, |command, add| add(command))
}

/// Whether a definition has all options up to `--`. Those of the wrapped command may be among them: then all flags are defined
/// for nothing.
fn has_all(definition: &Command, words: impl Iterator<Item = OsString>) -> bool {
    let has_long = |name: &[u8]| {
        definition.get_arguments().any(|option| option.get_long().is_some_and(|long| long.as_bytes() == name))
    };
    let has_short = |letter: &u8| {
        definition.get_arguments().any(|option| option.get_short() == Some(char::from(*letter)))
    };
    words.take_while(|word| word != "--").all(|word| match word.as_encoded_bytes() {
        [b'-', b'-', long @ ..] => long.split(|byte| *byte == b'=').next().is_some_and(has_long),
        // `-du root` has two options; `-eHOME=/` has a value, which looks like others.
        [b'-', letters @ ..] => letters.iter().all(has_short),
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn assert_default<T: Args + Debug + Default>() {
        let mut matches = T::augment_args(Command::new("x")).get_matches_from(["x"]);
        let defined = T::from_arg_matches_mut(&mut matches).unwrap();
        assert_eq!(format!("{:?}", T::default()), format!("{defined:?}"));
    }

    #[test]
    fn flags_that_are_not_defined_have_their_defaults() {
        assert_default::<UserArgs>();
        assert_default::<detached::DetachedArgs>();
        assert_default::<detached::ReadyArgs>();
        assert_default::<LimitArgs>();
        assert_default::<ResourceArgs>();
        assert_default::<profile::ProfileArgs>();
        assert_default::<end::StopArgs>();
        assert_default::<SpareArgs>();
    }

    #[test]
    fn the_usual_flags_are_enough_where_no_other_is_given() {
        let options = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            for_words(Command::new("run"), words).get_arguments().count()
        };
        let all = all(Command::new("run")).get_arguments().count();
        for line in ["true", "--grace 5s -dt -l a=b --name=x true", "-- x --memory 2G", "x y"] {
            assert!(options(line) < all * 3 / 4, "{line}: {} of {all}", options(line));
        }
        for line in ["--memory 2G x", "--memory=2G x", "-du root x", "--grace 5s --netns -- x", "--wrong x"] {
            assert_eq!(options(line), all, "{line}");
        }
    }
}
