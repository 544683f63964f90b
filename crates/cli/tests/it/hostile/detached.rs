//! Every hostile tree as a detached sandbox × containment level × ending, as root, as an ordinary user with a delegated
//! cgroup, and as one without. Survivors, left leaves and records, innocents hit: none.
//!
//! Needs root and the program `testkit`: `cargo nextest run -p penfold -p penfold-testkit`.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a skipped test says why; what is removed is the tests' own; who works on one tree names it in the environment"
)]

use crate::support_trees::{Case, Ending, every_tree};

macro_rules! endings {
    ($who:ident $level:ident: $($(#[$attribute:meta])* $name:ident $ending:expr,)*) => {
        $(
            #[test]
            $(#[$attribute])*
            fn $name() {
                use super::super::{Case, Ending, every_tree};
                use crate::support_e1::{Level, Who};
                every_tree(Case { who: Who::$who, level: Level::$level, ending: $ending });
            }
        )*
    };
}

macro_rules! levels {
    // Who asks for the end is the same at every level: at each a tree is ended in another of the ways.
    ($module:ident $who:ident: $($name:ident $level:ident $turn:literal)*) => {
        mod $module {
            $(mod $name {
                endings!($who $level:
                    leader_exits Ending::LeaderExit,
                    asked Ending::Turns($turn),
                    supervisor_killed Ending::SupervisorKilled,
                );
            })*
        }
    };
}

levels!(root Root: cgroup Cgroup 0 pidns Pidns 2 subreaper Subreaper 4);
levels!(delegated Delegated: cgroup Cgroup 1 subreaper Subreaper 3);
levels!(plain Plain: pidns Pidns 0 subreaper Subreaper 1);

/// Every tree in each of the ways: minutes, for who has changed how a sandbox is ended.
mod in_full {
    mod cgroup {
        endings!(Root Cgroup:
            #[ignore = "minutes; `asked` does one way with each tree"]
            stopped Ending::Stop,
            #[ignore = "minutes; `asked` does one way with each tree"]
            killed Ending::Kill,
            #[ignore = "minutes; `asked` does one way with each tree"]
            all_killed Ending::KillAll,
            #[ignore = "minutes; `asked` does one way with each tree"]
            removed Ending::Remove,
            #[ignore = "minutes; `asked` does one way with each tree"]
            lease_over Ending::Ttl,
        );
    }
}
