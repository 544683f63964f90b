//! Processes that hide who they are.

use std::os::unix::process::CommandExt;

use rustix::process::DumpableBehavior;

use super::yard::{Never, Step, Trouble, Yard};

pub(super) fn no_environ(yard: &Yard) -> Never {
    yard.daemon(|yard| Err(yard.member(&[])?.env_clear().exec().into()))?;
    yard.child(|yard| Err(yard.member(&[])?.env_clear().exec().into()))?;
    yard.stands(3)?;
    yard.lead()
}

pub(super) fn undumpable(yard: &Yard) -> Never {
    yard.daemon(|yard| {
        yard.register()?;
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .step("cannot become undumpable")?;
        yard.mark("hidden")?;
        yard.linger()
    })?;
    yard.until(|| yard.is_marked("hidden")).step("the daemon does not hide")?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn renamed(yard: &Yard) -> Never {
    yard.daemon(|yard| {
        let arguments = ["--name", "kworker/0:1 )(\n"];
        Err(yard.member(&arguments)?.arg0("[kworker/0:1]").env_clear().exec().into())
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn setuid_root(yard: &Yard) -> Never {
    if rustix::process::geteuid().is_root() {
        return Err(Trouble::Skip("already root: there is nothing to become".to_owned()));
    }
    let program = yard.directory().join("suid");
    if !program.exists() {
        return Err(Trouble::Skip("there is no set-user-ID copy of testkit here".to_owned()));
    }
    yard.child(|yard| Err(yard.member_of(&program, &["--become-root"]).exec().into()))?;
    yard.stands(2)?;
    yard.lead()
}

/// Calls the main thread by another name.
pub(super) fn rename(name: String) -> Result<(), Trouble> {
    let name = std::ffi::CString::new(name).step("a name holds a zero")?;
    rustix::thread::set_name(&name).step("cannot change the name")
}

/// Takes all three user ids of root in a program that has the set-user-ID bit.
pub(super) fn become_root() -> Result<(), Trouble> {
    let root = rustix::process::Uid::ROOT;
    rustix::thread::set_thread_res_uid(root, root, root).or_skip("cannot become root")
}
