//! Trees that reap for others, or not at all.

use penfold_sys::signal::set_ignored;

use super::yard::{Never, Step, Yard};

fn reaping(yard: &Yard) -> Never {
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).step("cannot become a subreaper")?;
    yard.orphan(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        yard.sleeper()
    })?;
    yard.sleeper()
}

pub(super) fn subreaper(yard: &Yard) -> Never {
    yard.child(reaping)?;
    yard.stands(3)?;
    yard.lead()
}

pub(super) fn subreaper_ignores_term(yard: &Yard) -> Never {
    yard.child(|yard| {
        set_ignored(15);
        reaping(yard)
    })?;
    yard.stands(3)?;
    yard.lead()
}

pub(super) fn zombies(yard: &Yard) -> Never {
    let count = yard.number_or(50, 500);
    yard.child(|yard| {
        for _ in 0..count {
            yard.child(|_| std::process::exit(0))?;
        }
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

/// Starts a thread that goes on without the main thread.
fn thread(yard: &Yard, life: fn(&Yard) -> !) {
    let yard = yard.clone();
    std::thread::spawn(move || life(&yard));
}

pub(super) fn zombie_leader(yard: &Yard) -> Never {
    yard.child(|yard| {
        yard.register()?;
        thread(yard, Yard::linger);
        thread(yard, Yard::linger);
        penfold_sys::hostile::exit_thread()
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn zombie_main(yard: &Yard) -> Never {
    yard.child(Yard::sleeper)?;
    thread(yard, |yard| {
        yard.live(|yard| {
            let own = penfold_testkit::proc::this().step("cannot read /proc/self/stat")?.id.pid;
            yard.until(|| penfold_testkit::proc::stat(own).is_some_and(|stat| stat.state == 'Z'))
                .step("the main thread lives")?;
            yard.stands(2)?;
            yard.lead()
        })
    });
    thread(yard, Yard::linger);
    penfold_sys::hostile::exit_thread()
}
