//! Gives a program the user of its sandbox.

use penfold_state::Identity;
use penfold_sys::launch::{Credentials, OwnStdio, Program};
use rustix::fs::{FileType, fchown, fstat};
use rustix::process::{Gid, Uid};

/// Makes a program run as this user.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn set_user(program: &mut Program, identity: &Identity) -> Result<(), String> {
    let Identity { uid, gid, groups } = identity;
    let user = Credentials::new(*uid, *gid, groups).ok_or("the record names no user: an id is -1")?;
    program.user(user);
    Ok(())
}

/// Gives the user the pipes or the terminal that penfold made, so that `/dev/stdout` and the name of the terminal can be opened.
///
/// Only a pipe that penfold reads, or the terminal of its own: `stdio` may have other files of the caller.
pub(crate) fn give_stdio(stdio: &OwnStdio, identity: &Identity) {
    let (user, group) = (Some(Uid::from_raw(identity.uid)), Some(Gid::from_raw(identity.gid)));
    if stdio.terminal {
        // A program that cannot open its terminal by name still has the descriptors.
        let _ = fchown(&stdio.input, user, group);
        return;
    }
    for pipe in [&stdio.output, &stdio.error] {
        if fstat(pipe).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo) {
            let _ = fchown(pipe, user, group);
        }
    }
}
