//! Finds the ports on which processes listen.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use serde::Serialize;

use crate::Pid;

/// A TCP port with a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Port {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// Where it listens.
    pub port: Port,
    /// The inode, by which descriptors of processes name it.
    pub inode: u64,
    /// The user that made it.
    pub user: u32,
}

/// All listeners by the inode of the socket, for each network namespace that was read.
#[derive(Debug, Default)]
pub struct Listeners {
    namespaces: HashMap<PathBuf, HashMap<u64, Listener>>,
}

impl Listeners {
    /// Returns the ports on which these processes listen.
    pub fn of(&mut self, pids: &[Pid]) -> Vec<Port> {
        let mut ports: Vec<Port> =
            pids.iter().flat_map(|&pid| self.held_by(pid)).map(|listener| listener.port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns all listeners in the network namespace of a process, whoever holds them.
    pub fn around(&mut self, pid: Pid) -> Vec<Listener> {
        self.namespace_of(pid).map(|listeners| listeners.values().copied().collect()).unwrap_or_default()
    }

    /// Returns the listeners that a process has open.
    pub fn held_by(&mut self, pid: Pid) -> Vec<Listener> {
        let Some(listeners) = self.namespace_of(pid).filter(|listeners| !listeners.is_empty()) else {
            return Vec::new();
        };
        let Ok(entries) = std::fs::read_dir(path(pid, "fd")) else { return Vec::new() };
        let sockets = entries.filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
        });
        sockets.filter_map(|inode| listeners.get(&inode).copied()).collect()
    }

    /// The listeners in the namespace of a process; `None` if the process has ended.
    fn namespace_of(&mut self, pid: Pid) -> Option<&HashMap<u64, Listener>> {
        let namespace = std::fs::read_link(path(pid, "ns/net")).ok()?;
        Some(match self.namespaces.entry(namespace) {
            Entry::Occupied(read) => read.into_mut(),
            // A process that has just ended shows nothing: another one of its namespace may.
            Entry::Vacant(unread) => unread.insert(listeners(pid)?),
        })
    }
}

fn path(pid: Pid, name: &str) -> PathBuf {
    format!("/proc/{}/{name}", pid.as_raw_pid()).into()
}

/// Reads the tables of a process's namespace; `None` if the process has ended meanwhile.
fn listeners(pid: Pid) -> Option<HashMap<u64, Listener>> {
    let four = std::fs::read_to_string(path(pid, "net/tcp")).ok()?;
    // A kernel without IPv6 has no such file.
    let six = std::fs::read_to_string(path(pid, "net/tcp6")).unwrap_or_default();
    let all = [four, six];
    let listeners = all.iter().flat_map(|table| table.lines().filter_map(line));
    Some(listeners.map(|listener| (listener.inode, listener)).collect())
}

/// Parses a line of `/proc/net/tcp`, `proc_pid_net(5)`, if its socket listens.
fn line(text: &str) -> Option<Listener> {
    const LISTENS: &str = "0A";
    let mut words = text.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    if words.nth(1)? != LISTENS {
        return None;
    }
    let user = words.nth(3)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    let port = Port { address: parse(address)?, port: u16::from_str_radix(port, 16).ok()? };
    Some(Listener { port, inode, user })
}

/// Parses words of four bytes, each written as a number in the byte order of this machine.
fn parse(hex: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for at in (0..hex.len()).step_by(8) {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    if let Ok(four) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(Ipv4Addr::from(four).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?).to_canonical())
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_that_listen_are_read_and_others_not() {
        let listens = "   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 4711 1 0 100 0 0 10 0";
        let Listener { port, inode, user } = line(listens).unwrap();
        assert_eq!((inode, user, port.to_string()), (4711, 1000, "127.0.0.1:3000".to_owned()));
        assert_eq!(line(&listens.replace(" 0A ", " 01 ")), None);
        let six = listens.replace("0100007F:", "00000000000000000000000001000000:");
        assert_eq!(line(&six).unwrap().port.to_string(), "[::1]:3000");
        assert_eq!(line("  sl  local_address rem_address   st tx_queue"), None);
    }
}
