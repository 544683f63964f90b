//! An address with the length of its network's prefix.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::mistake::Mistake;

/// An address and its prefix: `10.7.0.2/30`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Returns the address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns another address of the network; `None` if it is not in the network.
    pub(crate) fn neighbour(&self, address: IpAddr) -> Option<Cidr> {
        let same = match (self.address, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                let differ = u32::from(one) ^ u32::from(other);
                differ.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => {
                let differ = u128::from(one) ^ u128::from(other);
                differ.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        };
        (same && address != self.address).then_some(Cidr { address, prefix: self.prefix })
    }
}

impl FromStr for Cidr {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Cidr, Mistake> {
        let mistake = || Mistake::Cidr { text: text.to_owned() };
        let (address, prefix) = text.split_once('/').ok_or_else(mistake)?;
        let address: IpAddr = address.parse().map_err(|_| mistake())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|prefix| is_number && (1..=most).contains(prefix));
        Ok(Cidr { address, prefix: prefix.ok_or_else(mistake)? })
    }
}

impl TryFrom<String> for Cidr {
    type Error = Mistake;

    fn try_from(text: String) -> Result<Cidr, Mistake> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> String {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_and_nothing_else_is_one() {
        for text in ["10.7.0.2/30", "fd00::2/64"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
        for text in
            ["", "10.7.0.2", "10.7.0.2/", "10.7.0.2/33", "10.7.0.2/+3", "10.7.0.2/0", "fd00::2/129", "x/8"]
        {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_neighbour_is_another_address_of_the_network() {
        let cidr: Cidr = "10.7.0.2/30".parse().unwrap();
        assert_eq!(cidr.neighbour("10.7.0.1".parse().unwrap()).unwrap().to_string(), "10.7.0.1/30");
        for other in ["10.7.0.2", "10.7.0.5", "fd00::1"] {
            assert_eq!(cidr.neighbour(other.parse().unwrap()), None);
        }
    }
}
