//! Trees of great width, depth, or weight.

use super::env::{Never, TestEnv};

fn flat(env: &TestEnv, count: u32) -> Never {
    for _ in 0..count {
        env.child(TestEnv::sleeper)?;
    }
    env.stands(usize::try_from(count).unwrap_or(0) + 1)?;
    env.lead()
}

pub(super) fn wide(env: &TestEnv) -> Never {
    flat(env, env.number_or(64, 4000))
}

pub(super) fn close_pids(env: &TestEnv) -> Never {
    flat(env, env.number_or(20, 100))
}

pub(super) fn deep(env: &TestEnv) -> Never {
    fn below(env: &TestEnv, left: u32) -> Never {
        if left > 1 {
            env.child(|env| below(env, left - 1))?;
        }
        env.sleeper()
    }
    let depth = env.number_or(32, 1000);
    env.child(|env| below(env, depth))?;
    env.stands(usize::try_from(depth).unwrap_or(0) + 1)?;
    env.lead()
}

pub(super) fn threads(env: &TestEnv) -> Never {
    let count = env.number_or(40, 1000);
    env.child(|env| {
        for _ in 0..count {
            let thread = env.clone();
            std::thread::Builder::new().stack_size(64 * 1024).spawn(move || thread.linger())?;
        }
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn memory(env: &TestEnv) -> Never {
    let mebibytes = usize::try_from(env.number_or(20, 1000)).unwrap_or(0);
    env.child(|env| {
        let touched = vec![1_u8; mebibytes << 20];
        env.register()?;
        std::hint::black_box(&touched);
        env.linger()
    })?;
    env.stands(2)?;
    env.lead()
}
