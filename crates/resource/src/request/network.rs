//! The network of a sandbox, as a user writes it.

use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::cidr::Cidr;
use crate::mistake::Mistake;

/// A network namespace, its link to the host and its tap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The address of `eth0` in the namespace. With it, the namespace has a link to the host.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Cidr>,
    /// The address of the host's end of the link, and the default route of the namespace.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The address of the host's end of the link, without a default route.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_address: Option<Cidr>,
    /// A tap device for a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<TapRequest>,
    /// Whether there is a network namespace. Without it, the tap is on the host.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub namespace: bool,
    /// Whether the command runs in the namespace.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub enter: bool,
}

fn yes() -> bool {
    true
}

impl Default for Network {
    fn default() -> Network {
        Network { address: None, gateway: None, peer_address: None, tap: None, namespace: true, enter: true }
    }
}

/// A tap device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TapRequest {
    /// The name; by default `tap0` in a namespace, and one with the sandbox's id on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The uid of the user who may open the device, beside root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

impl FromStr for TapRequest {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<TapRequest, Mistake> {
        let mistake = || Mistake::Tap(text.to_owned());
        let (name, rest) = text.split_once(',').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let user = match rest {
            None => None,
            Some(rest) => {
                let uid = rest.strip_prefix("user=").ok_or_else(mistake)?;
                Some(uid.parse().map_err(|_| mistake())?)
            }
        };
        let name = if name.is_empty() { None } else { Some(checked_link_name(name)?.to_owned()) };
        Ok(TapRequest { name, user })
    }
}

/// Returns the name if the kernel takes it for a link: `dev_valid_name` in net/core/dev.c.
pub(crate) fn checked_link_name(name: &str) -> Result<&str, Mistake> {
    let is_bad = |byte: u8| byte == b'/' || byte == b':' || byte == b'%' || byte <= b' ' || byte == 0x7f;
    if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.bytes().any(is_bad) {
        return Err(Mistake::LinkName(name.to_owned()));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_has_a_name_and_a_user() {
        let tap: TapRequest = "tap0,user=1000".parse().unwrap();
        assert_eq!(tap, TapRequest { name: Some("tap0".to_owned()), user: Some(1000) });
        assert_eq!("".parse::<TapRequest>().unwrap(), TapRequest::default());
        for text in ["tap0,", "tap0,user=", "tap0,user=x", "a b", "..", "a-name-of-16-byte"] {
            assert!(text.parse::<TapRequest>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_network_is_a_namespace_unless_told_otherwise() {
        assert_eq!(serde_json::from_str::<Network>("{}").unwrap(), Network::default());
        assert_eq!(serde_json::to_string(&Network::default()).unwrap(), "{}");
        assert!(serde_json::from_str::<Network>(r#"{"adress":"10.7.0.2/30"}"#).is_err());
    }
}
