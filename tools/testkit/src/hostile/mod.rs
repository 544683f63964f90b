//! The trees themselves, one file for each family.

mod basic;
mod cgroup;
pub(crate) mod env;
mod hidden;
mod killer;
mod many;
mod moving;
mod namespace;
mod reaper;
mod slots;
mod state;

use env::{Never, TestEnv, Trouble};

type Life = fn(&TestEnv) -> Never;

/// Becomes the leader of a tree.
pub(crate) fn run(name: &str, env: &TestEnv) -> ! {
    let Some(life) = life(name) else {
        env.report(&Trouble::Broken(format!("there is no tree `{name}`")));
    };
    env.live(|env| {
        env.open()?;
        life(env)
    })
}

/// Becomes a single sleeping member of a tree.
pub(crate) fn member(env: &TestEnv, name: Option<String>, become_root: bool) -> ! {
    env.live(|env| {
        if become_root {
            hidden::become_root()?;
        }
        if let Some(name) = name {
            hidden::rename(name)?;
        }
        env.sleeper()
    })
}

fn life(name: &str) -> Option<Life> {
    Some(match name {
        "plain" => basic::plain,
        "ignore-term" => basic::ignore_term,
        "block-all" => basic::block_all,
        "own-group" => basic::own_group,
        "setsid" => basic::setsid,
        "daemon" => basic::daemon,
        "daemon-closed-fds" => basic::daemon_closed_fds,
        "daemon-holds-pipe" => basic::daemon_holds_pipe,
        "thread-child" => basic::thread_child,
        "pty" => basic::pty,
        "strays-exit-3" => basic::strays_exit_3,
        "hasty" => basic::hasty,
        "subreaper" => reaper::subreaper,
        "subreaper-ignores-term" => reaper::subreaper_ignores_term,
        "zombies" => reaper::zombies,
        "zombie-leader" => reaper::zombie_leader,
        "zombie-main" => reaper::zombie_main,
        "comet" => moving::comet,
        "hydra" => moving::hydra,
        "watchers" => moving::watchers,
        "fork-on-term" => moving::fork_on_term,
        "storm" => moving::storm,
        "storm-exit" => moving::storm_exit,
        "wide" => many::wide,
        "deep" => many::deep,
        "threads" => many::threads,
        "memory" => many::memory,
        "close-pids" => many::close_pids,
        "stopped" => state::stopped,
        "stopped-term-pending" => state::stopped_term_pending,
        "traced" => state::traced,
        "frozen-writer" => state::frozen_writer,
        "vfork" => state::vfork,
        "no-environ" => hidden::no_environ,
        "undumpable" => hidden::undumpable,
        "renamed" => hidden::renamed,
        "setuid-root" => hidden::setuid_root,
        "pidns" => namespace::pidns,
        "user-pidns" => namespace::user_pidns,
        "mountns-tmpfs" => namespace::mountns_tmpfs,
        "moved-cgroup" => cgroup::moved,
        "child-cgroups" => cgroup::nested,
        "frozen-v2" => cgroup::frozen_v2,
        "frozen-v1" => cgroup::frozen_v1,
        "frozen-v1-pidns" => cgroup::frozen_v1_pidns,
        "kill-parent" => killer::parent,
        "kill-grandparents" => killer::grandparents,
        "kill-group" => killer::group,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_tree_of_the_catalog_exists() {
        for tree in crate::catalog::TREES {
            assert!(super::life(tree.name).is_some(), "{}", tree.name);
        }
    }
}
