//! The service managers of a host, and the buses on which they are reached.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A service manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceManager {
    /// The manager of this user's services, `systemd --user`.
    User,
    /// The manager of the host, pid 1.
    System,
}

impl std::fmt::Display for ServiceManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ServiceManager::User => "the user's manager",
            ServiceManager::System => "the system's manager",
        })
    }
}

/// The addresses of the buses, as D-Bus writes them. The first bus that can be reached is used.
#[derive(Debug, Clone, Default)]
pub struct Buses {
    /// The buses of this user.
    pub user: Vec<String>,
    /// The buses of the host.
    pub system: Vec<String>,
}

impl Buses {
    /// Returns the address of the bus at a socket.
    pub fn at_socket(path: &Path) -> String {
        let mut address = "unix:path=".to_owned();
        for &byte in path.as_os_str().as_encoded_bytes() {
            match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'/' | b'.' => {
                    address.push(char::from(byte));
                }
                _ => {
                    // Writing to a String cannot fail.
                    let _ = write!(address, "%{byte:02x}");
                }
            }
        }
        address
    }

    #[cfg(feature = "dbus")]
    pub(crate) fn of(&self, manager: ServiceManager) -> &[String] {
        match manager {
            ServiceManager::User => &self.user,
            ServiceManager::System => &self.system,
        }
    }
}

/// Tells whether this host was booted with systemd, `sd_booted(3)`.
pub fn is_booted() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets_are_escaped() {
        assert_eq!(Buses::at_socket(Path::new("/run/user/1000/bus")), "unix:path=/run/user/1000/bus");
        assert_eq!(Buses::at_socket(Path::new("/a b;c,d")), "unix:path=/a%20b%3bc%2cd");
    }
}
