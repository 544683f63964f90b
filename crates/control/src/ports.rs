//! Who listens on TCP ports: the members of sandboxes, and the processes outside.

use std::collections::{HashMap, HashSet};
use std::io;

use penfold_process::{Listener, Listeners, Pid, Port, ProcFs};
use serde::Serialize;

use crate::resolve::{Resolver, SandboxRef};
use crate::view::{SandboxView, list_members, observe_sandbox, select_sandboxes};

/// A member of a sandbox that listens on a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ListeningMember {
    /// Where it listens.
    #[serde(flatten)]
    pub port: Port,
    /// The pid.
    pub pid: i32,
    /// The command line.
    pub command: String,
}

/// Finds the ports of a sandbox. Of several processes that share a listener, the first one counts.
///
/// # Errors
/// When /proc cannot be read.
pub fn ports_of(
    resolver: &Resolver,
    known: &SandboxRef,
    view: &SandboxView,
) -> io::Result<Vec<ListeningMember>> {
    let mut listeners = Listeners::default();
    let mut found: Vec<ListeningMember> = Vec::new();
    for member in list_members(resolver, known, view, false)? {
        for port in listeners.of(&[member.id.pid]) {
            if !found.iter().any(|known| known.port == port) {
                let pid = member.id.pid.as_raw_pid();
                found.push(ListeningMember { port, pid, command: member.command.clone() });
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Who listens on a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PortHolder {
    /// Where it listens.
    #[serde(flatten)]
    pub port: Port,
    /// Whether the port is one of a network namespace of its own, in which nothing outside meets it.
    pub is_own_network: bool,
    /// The id of the sandbox; `None` for a process outside.
    pub sandbox: Option<String>,
    /// The name of the sandbox.
    pub name: Option<String>,
    /// The pid; `None` for a process that this user may not see.
    pub pid: Option<i32>,
    /// The number of the user that made the listener.
    pub user: u32,
    /// The command line.
    pub command: Option<String>,
}

/// Finds who listens where, in sandboxes first, then outside in the network namespace of this process. Of the processes of one
/// sandbox, or outside, that share a listener, the first one counts.
///
/// # Errors
/// When /proc cannot be read.
pub fn list_holders(
    resolver: &Resolver,
    sandboxes: &[(SandboxRef, SandboxView)],
) -> io::Result<Vec<PortHolder>> {
    let mut look = Look::new()?;
    let mut members = HashSet::new();
    for (known, view) in sandboxes {
        for member in list_members(resolver, known, view, false)? {
            members.insert(member.id.pid);
            look.note(member.id.pid, Some(known), |_| Some(member.command));
        }
    }
    let mut pids = Vec::new();
    look.proc.processes(&mut pids)?;
    for pid in pids {
        if !members.contains(&pid) {
            look.note(pid, None, |proc| proc.command_line(pid));
        }
    }
    Ok(look.finish())
}

/// A look at the processes of this host.
struct Look {
    proc: ProcFs,
    listeners: Listeners,
    /// Those in the network namespace of this process.
    here: HashMap<u64, Listener>,
    found: Vec<(u64, PortHolder)>,
}

impl Look {
    fn new() -> io::Result<Look> {
        let mut listeners = Listeners::default();
        let here = listeners.around(rustix::process::getpid());
        let here = here.into_iter().map(|listener| (listener.inode, listener)).collect();
        Ok(Look { proc: ProcFs::open()?, listeners, here, found: Vec::new() })
    }

    /// Notes the listeners of a process that is a member of a sandbox, or outside of all.
    fn note(
        &mut self,
        pid: Pid,
        sandbox: Option<&SandboxRef>,
        command: impl FnOnce(&mut ProcFs) -> Option<String>,
    ) {
        let id = sandbox.map(|known| known.id.as_str());
        let is_noted = |found: &[(u64, PortHolder)], inode: u64| {
            found.iter().any(|(known, holder)| *known == inode && holder.sandbox.as_deref() == id)
        };
        let mut listeners = self.listeners.held_by(pid);
        listeners.retain(|listener| {
            // What is outside and in another namespace is in nobody's way.
            !is_noted(&self.found, listener.inode)
                && (id.is_some() || self.here.contains_key(&listener.inode))
        });
        if listeners.is_empty() {
            return;
        }
        let command = command(&mut self.proc);
        for Listener { port, inode, user } in listeners {
            let holder = PortHolder {
                port,
                is_own_network: !self.here.contains_key(&inode),
                sandbox: id.map(str::to_owned),
                name: sandbox.and_then(|known| known.name.clone()),
                pid: Some(pid.as_raw_pid()),
                user,
                command: command.clone(),
            };
            self.found.push((inode, holder));
        }
    }

    /// Adds the listeners whose holders this user may not see, and sorts all.
    fn finish(mut self) -> Vec<PortHolder> {
        let seen: HashSet<u64> = self.found.iter().map(|(inode, _)| *inode).collect();
        let unseen = self.here.values().filter(|listener| !seen.contains(&listener.inode));
        let unseen = unseen.map(|listener| PortHolder {
            port: listener.port,
            is_own_network: false,
            sandbox: None,
            name: None,
            pid: None,
            user: listener.user,
            command: None,
        });
        let mut all: Vec<PortHolder> = unseen.collect();
        all.extend(self.found.drain(..).map(|(_, holder)| holder));
        all.sort_unstable_by_key(|holder| {
            (holder.sandbox.is_none(), holder.port.port, holder.port.address, holder.pid)
        });
        all
    }
}

/// Finds who holds a port that a sandbox in the network of this process cannot have. Of nested sandboxes that is the innermost one.
///
/// # Errors
/// When /proc or the state root cannot be read.
pub fn find_holder(resolver: &Resolver, wanting: &SandboxRef, port: u16) -> io::Result<Option<PortHolder>> {
    let living = select_sandboxes(resolver, false)?;
    let mut holders = list_holders(resolver, &living)?;
    holders.retain(|holder| {
        let is_other = holder.sandbox.as_deref() != Some(&wanting.id);
        holder.port.port == port && !holder.is_own_network && is_other
    });
    let Some(mut first) = holders.first().cloned() else { return Ok(None) };
    // The inner one has started later.
    let began = |holder: &PortHolder| {
        let view = living.iter().find(|(known, _)| Some(&known.id) == holder.sandbox.as_ref());
        view.and_then(|(_, view)| view.started_at_ms)
    };
    for holder in holders.into_iter().skip(1) {
        if holder.pid == first.pid && holder.sandbox.is_some() && began(&holder) > began(&first) {
            first = holder;
        }
    }
    Ok(Some(first))
}

/// Tells whether a member of a sandbox is in the network namespace of this process.
pub fn is_in_this_network(resolver: &Resolver, known: &SandboxRef) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let Some(own) = namespace("self") else { return false };
    let Some(view) = observe_sandbox(resolver, known) else { return false };
    let members = list_members(resolver, known, &view, false).unwrap_or_default();
    members.iter().any(|member| namespace(&member.id.pid.as_raw_pid().to_string()).as_ref() == Some(&own))
}
