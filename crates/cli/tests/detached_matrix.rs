//! Every hostile tree as a detached sandbox × containment level × ending, as root, as an ordinary user with a delegated
//! cgroup, and as one without. Survivors, left leaves and records, innocents hit: none.
//!
//! Needs root and the program `testkit`: `cargo nextest run -p penfold -p penfold-testkit`.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a skipped test says why; what is removed is the tests' own; who works on one tree names it in the environment"
)]

mod support_e1;
mod support_f;
#[path = "support_f/trees.rs"]
mod trees;

use trees::{Case, Ending, every_tree};

macro_rules! endings {
    ($who:ident $level:ident: $($name:ident $ending:expr,)*) => {
        $(
            #[test]
            fn $name() {
                use super::super::{Case, Ending, every_tree};
                use super::super::support_e1::{Level, Who};
                every_tree(Case { who: Who::$who, level: Level::$level, ending: $ending });
            }
        )*
    };
}

macro_rules! levels {
    ($module:ident $who:ident every ending: $($name:ident $level:ident)*) => {
        mod $module {
            $(mod $name {
                endings!($who $level:
                    leader_exits Ending::LeaderExit,
                    stopped Ending::Stop,
                    killed Ending::Kill,
                    all_killed Ending::KillAll,
                    removed Ending::Remove,
                    lease_over Ending::Ttl,
                    supervisor_killed Ending::SupervisorKilled,
                );
            })*
        }
    };
    // Who asks for the end is the same at every level: here each tree is ended in two of the ways.
    ($module:ident $who:ident: $($name:ident $level:ident)*) => {
        mod $module {
            $(mod $name {
                endings!($who $level:
                    leader_exits Ending::LeaderExit,
                    asked Ending::Turns(0),
                    asked_otherwise Ending::Turns(2),
                    supervisor_killed Ending::SupervisorKilled,
                );
            })*
        }
    };
}

levels!(root Root every ending: cgroup Cgroup);
levels!(root_elsewhere Root: pidns Pidns subreaper Subreaper);
levels!(delegated Delegated: cgroup Cgroup subreaper Subreaper);
levels!(plain Plain: pidns Pidns subreaper Subreaper);
