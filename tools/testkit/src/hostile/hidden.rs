//! Processes that hide their identity.

use std::os::unix::process::CommandExt;

use rustix::process::DumpableBehavior;

use super::env::{Never, Step, TestEnv, Trouble};

pub(super) fn no_environ(env: &TestEnv) -> Never {
    env.daemon(|env| Err(env.member(&[])?.env_clear().exec().into()))?;
    env.child(|env| Err(env.member(&[])?.env_clear().exec().into()))?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn undumpable(env: &TestEnv) -> Never {
    env.daemon(|env| {
        env.register()?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .step("cannot become undumpable")?;
        env.mark("hidden")?;
        env.linger()
    })?;
    env.until(|| env.is_marked("hidden")).step("the daemon does not hide")?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn renamed(env: &TestEnv) -> Never {
    env.daemon(|env| {
        let arguments = ["--name", "kworker/0:1 )(\n"];
        Err(env.member(&arguments)?.arg0("[kworker/0:1]").env_clear().exec().into())
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn setuid_root(env: &TestEnv) -> Never {
    if rustix::process::geteuid().is_root() {
        return Err(Trouble::Skip("already root: there is nothing to become".to_owned()));
    }
    let program = env.directory().join("suid");
    if !program.exists() {
        return Err(Trouble::Skip("there is no set-user-ID copy of testkit here".to_owned()));
    }
    env.child(|env| Err(env.member_of(&program, &["--become-root"]).exec().into()))?;
    env.stands(2)?;
    env.lead()
}

/// Renames the main thread.
pub(super) fn rename(name: String) -> Result<(), Trouble> {
    let name = std::ffi::CString::new(name).step("a name holds a zero")?;
    rustix::thread::set_name(&name).step("cannot change the name")
}

/// Takes all three user ids of root in a program that has the set-user-ID bit.
pub(super) fn become_root() -> Result<(), Trouble> {
    let root = rustix::process::Uid::ROOT;
    rustix::thread::set_thread_res_uid(root, root, root).or_skip("cannot become root")
}
