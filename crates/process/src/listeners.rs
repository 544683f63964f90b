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

/// All listeners by the inode of the socket, for each network namespace that was read.
#[derive(Debug, Default)]
pub struct Listeners {
    namespaces: HashMap<PathBuf, HashMap<u64, Port>>,
}

impl Listeners {
    /// Returns the ports on which these processes listen.
    pub fn of(&mut self, pids: &[Pid]) -> Vec<Port> {
        let mut ports: Vec<Port> = pids.iter().flat_map(|&pid| self.of_one(pid)).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    fn of_one(&mut self, pid: Pid) -> Vec<Port> {
        let Ok(namespace) = std::fs::read_link(path(pid, "ns/net")) else { return Vec::new() };
        let listeners = match self.namespaces.entry(namespace) {
            Entry::Occupied(read) => read.into_mut(),
            // A process that has just ended shows nothing: another one of its namespace may.
            Entry::Vacant(unread) => match listeners(pid) {
                Some(listeners) => unread.insert(listeners),
                None => return Vec::new(),
            },
        };
        if listeners.is_empty() {
            return Vec::new();
        }
        let Ok(entries) = std::fs::read_dir(path(pid, "fd")) else { return Vec::new() };
        let sockets = entries.filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
        });
        sockets.filter_map(|inode| listeners.get(&inode).copied()).collect()
    }
}

fn path(pid: Pid, name: &str) -> PathBuf {
    format!("/proc/{}/{name}", pid.as_raw_pid()).into()
}

/// Reads the tables of a process's namespace; `None` if the process has ended meanwhile.
fn listeners(pid: Pid) -> Option<HashMap<u64, Port>> {
    let four = std::fs::read_to_string(path(pid, "net/tcp")).ok()?;
    // A kernel without IPv6 has no such file.
    let six = std::fs::read_to_string(path(pid, "net/tcp6")).unwrap_or_default();
    Some([four, six].iter().flat_map(|table| table.lines().filter_map(line)).collect())
}

/// Parses a line of `/proc/net/tcp`, `proc_pid_net(5)`, if its socket listens.
fn line(text: &str) -> Option<(u64, Port)> {
    const LISTENS: &str = "0A";
    let mut words = text.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    if words.nth(1)? != LISTENS {
        return None;
    }
    let inode = words.nth(5)?.parse().ok()?;
    Some((inode, Port { address: parse(address)?, port: u16::from_str_radix(port, 16).ok()? }))
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
        let (inode, port) = line(listens).unwrap();
        assert_eq!((inode, port.to_string()), (4711, "127.0.0.1:3000".to_owned()));
        assert_eq!(line(&listens.replace(" 0A ", " 01 ")), None);
        let six = listens.replace("0100007F:", "00000000000000000000000001000000:");
        assert_eq!(line(&six).unwrap().1.to_string(), "[::1]:3000");
        assert_eq!(line("  sl  local_address rem_address   st tx_queue"), None);
    }
}
