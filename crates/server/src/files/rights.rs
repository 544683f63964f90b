//! With whose rights the server acts on files: its own, those of a process in a jail, or those of a user of this machine.

use std::marker::PhantomData;
use std::sync::Arc;

use penfold_state::Identity;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// With whose rights the server acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Actor {
    /// Its own.
    Server,
    /// Those of a process in a jail: those of its user, and no capabilities.
    Jail,
    /// Those of a user of this machine. Only root acts as another user.
    User(Arc<Identity>),
}

/// The rights of this thread are those of an [`Actor`] until this value is dropped.
#[derive(Debug)]
pub(crate) struct Rights {
    capabilities: Option<CapabilitySets>,
    ids: Option<Ids>,
    /// Rights belong to a thread.
    _thread: PhantomData<*const ()>,
}

/// The user and the groups of a thread.
#[derive(Debug)]
struct Ids {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Ids {
    fn now() -> Result<Ids, Errno> {
        Ok(Ids { uid: geteuid(), gid: getegid(), groups: getgroups()? })
    }

    /// Puts them back. The thread may have capabilities again.
    fn restore(&self) -> Result<(), Errno> {
        // The user first: only root may set groups.
        set_thread_res_uid(None, self.uid, None)?;
        set_thread_res_gid(None, self.gid, None)?;
        set_thread_groups(&self.groups)
    }
}

impl Rights {
    /// Takes the rights of an actor. Those of a user that this thread acts as already are there.
    ///
    /// # Errors
    /// Those of capset(2) and setresuid(2); then nothing has changed.
    pub(crate) fn of(actor: &Actor) -> Result<Rights, Errno> {
        let mut rights = Rights { capabilities: None, ids: None, _thread: PhantomData };
        match actor {
            Actor::Server => {}
            Actor::Jail => rights.put_capabilities_aside()?,
            Actor::User(user) if geteuid().as_raw() == user.uid => {}
            // What was changed before an error is undone by the drop.
            Actor::User(user) => rights.become_user(user)?,
        }
        Ok(rights)
    }

    fn put_capabilities_aside(&mut self) -> Result<(), Errno> {
        let sets = capabilities(None)?;
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?;
        self.capabilities = Some(sets);
        Ok(())
    }

    /// The real user stays, so that the thread can come back, and no process of the user can signal the server.
    fn become_user(&mut self, user: &Identity) -> Result<(), Errno> {
        let (before, sets) = (Ids::now()?, capabilities(None)?);
        let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups)?;
        self.ids = Some(before);
        set_thread_res_gid(None, Gid::from_raw(user.gid), None)?;
        set_thread_res_uid(None, Uid::from_raw(user.uid), None)?;
        set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?;
        self.capabilities = Some(sets);
        Ok(())
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        // The permitted set and the real user are unchanged, so neither can fail; if one did, the thread would have fewer rights.
        if let Some(sets) = self.capabilities {
            let _ = set_capabilities(None, sets);
        }
        if let Some(ids) = &self.ids
            && let Err(errno) = ids.restore()
        {
            tracing::error!(%errno, "a thread cannot have the rights of the server again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    /// spec: 19.6
    #[test]
    fn capabilities_come_back() {
        let now = || capabilities(None).unwrap().effective;
        let before = now();
        let aside = Rights::of(&Actor::Jail).unwrap();
        assert_eq!(now(), CapabilitySet::empty());
        drop(aside);
        assert_eq!(now(), before);
        drop(Rights::of(&Actor::Server).unwrap());
        assert_eq!(now(), before);
    }

    /// spec: 36.13
    #[test]
    fn root_acts_as_a_user_for_a_while() {
        if !geteuid().is_root() {
            return;
        }
        let top = tempfile::tempdir().unwrap();
        let open = top.path().join("open");
        std::fs::create_dir(&open).unwrap();
        for (path, mode) in [(top.path(), 0o755), (&open, 0o777)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let secret = top.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let before = (Ids::now().unwrap(), capabilities(None).unwrap());
        let actor = Actor::User(Arc::new(Identity { uid: 4321, gid: 4322, groups: vec![4322, 4323] }));
        let rights = Rights::of(&actor).unwrap();
        let again = Rights::of(&actor).unwrap();
        assert!(std::fs::read(&secret).is_err());
        std::fs::write(open.join("own"), "x").unwrap();
        drop((again, rights));
        assert!(std::fs::read(&secret).is_ok());
        let own = std::fs::metadata(open.join("own")).unwrap();
        assert_eq!((own.uid(), own.gid()), (4321, 4322));
        let after = (Ids::now().unwrap(), capabilities(None).unwrap());
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        // A user that cannot be: (uid_t) -1 is no user.
        let none = Actor::User(Arc::new(Identity { uid: 4321, gid: 4322, groups: vec![4322; 70_000] }));
        assert!(Rights::of(&none).is_err());
        assert_eq!(
            format!("{before:?}"),
            format!("{:?}", (Ids::now().unwrap(), capabilities(None).unwrap()))
        );
    }
}
