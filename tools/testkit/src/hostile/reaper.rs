//! Trees that reap for others, or not at all.

use penfold_sys::signal::set_ignored;

use super::env::{Never, Step, TestEnv};

fn reaping(env: &TestEnv) -> Never {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).step("cannot become a subreaper")?;
    env.orphan(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        env.sleeper()
    })?;
    env.sleeper()
}

pub(super) fn subreaper(env: &TestEnv) -> Never {
    env.child(reaping)?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn subreaper_ignores_term(env: &TestEnv) -> Never {
    env.child(|env| {
        set_ignored(15);
        reaping(env)
    })?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn zombies(env: &TestEnv) -> Never {
    let count = env.number_or(50, 500);
    env.child(|env| {
        for _ in 0..count {
            env.child(|_| std::process::exit(0))?;
        }
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

/// Starts a thread that goes on without the main thread.
fn thread(env: &TestEnv, life: fn(&TestEnv) -> !) {
    let env = env.clone();
    std::thread::spawn(move || life(&env));
}

pub(super) fn zombie_leader(env: &TestEnv) -> Never {
    env.child(|env| {
        env.register()?;
        thread(env, TestEnv::linger);
        thread(env, TestEnv::linger);
        penfold_sys::hostile::exit_thread()
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn zombie_main(env: &TestEnv) -> Never {
    env.child(TestEnv::sleeper)?;
    thread(env, |env| {
        env.live(|env| {
            let own = crate::proc::this().step("cannot read /proc/self/stat")?.id.pid;
            env.until(|| crate::proc::stat(own).is_some_and(|stat| stat.state == 'Z'))
                .step("the main thread lives")?;
            env.stands(2)?;
            env.lead()
        })
    });
    thread(env, TestEnv::linger);
    penfold_sys::hostile::exit_thread()
}
