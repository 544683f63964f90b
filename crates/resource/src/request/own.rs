//! What the command makes itself, as a user writes it: `KIND=NAME`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::network::checked_link_name;
use super::paths::check_path;
use crate::mistake::Mistake;
use crate::own::OwnResource;

/// A resource that the command makes: `path=/x`, `netns=n`, `link=l`, `mount=/m`, `loop=/backing.img`, `nft=inet:name`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnRequest(pub(crate) OwnResource);

impl FromStr for OwnRequest {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<OwnRequest, Mistake> {
        let mistake = || Mistake::Own(text.to_owned());
        let (kind, name) = text.split_once('=').ok_or_else(mistake)?;
        let path = || check_path(&PathBuf::from(name));
        Ok(OwnRequest(match kind {
            "path" => OwnResource::Path(path()?),
            "mount" => OwnResource::Mount(path()?),
            "loop" => OwnResource::Loop(path()?),
            "link" => OwnResource::Link(checked_link_name(name)?.to_owned()),
            "netns" => OwnResource::Netns(checked_netns_name(name)?),
            "nft" => {
                let (family, table) = name.split_once(':').unwrap_or(("inet", name));
                let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
                let families = ["ip", "ip6", "inet", "arp", "bridge", "netdev"];
                if !families.contains(&family) || table.is_empty() || !table.bytes().all(is_word) {
                    return Err(Mistake::NftName(name.to_owned()));
                }
                OwnResource::Nft { family: family.to_owned(), table: table.to_owned() }
            }
            _ => return Err(mistake()),
        }))
    }
}

fn checked_netns_name(name: &str) -> Result<String, Mistake> {
    if name.is_empty() || name == "." || name == ".." || name.len() > 255 || name.contains(['/', '\0']) {
        return Err(Mistake::NetnsName(name.to_owned()));
    }
    Ok(name.to_owned())
}

impl TryFrom<String> for OwnRequest {
    type Error = Mistake;

    fn try_from(text: String) -> Result<OwnRequest, Mistake> {
        text.parse()
    }
}

impl From<OwnRequest> for String {
    fn from(own: OwnRequest) -> String {
        own.to_string()
    }
}

impl fmt::Display for OwnRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for OwnResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnResource::Path(path) => write!(f, "path={}", path.display()),
            OwnResource::Mount(point) => write!(f, "mount={}", point.display()),
            OwnResource::Loop(file) => write!(f, "loop={}", file.display()),
            OwnResource::Link(name) => write!(f, "link={name}"),
            OwnResource::Netns(name) => write!(f, "netns={name}"),
            OwnResource::Nft { family, table } => write!(f, "nft={family}:{table}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_reads_back() {
        for text in ["path=/x", "netns=n", "link=l", "mount=/m", "loop=/b.img", "nft=inet:name"] {
            assert_eq!(text.parse::<OwnRequest>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nothing_else_is_taken() {
        for text in [
            "",
            "path",
            "path=",
            "path=x",
            "path=/",
            "path=/a/../b",
            "netns=a/b",
            "netns=..",
            "link=a b",
            "nft=x:y",
            "nft=inet:",
            "nft=inet:a b",
            "file=/x",
        ] {
            assert!(text.parse::<OwnRequest>().is_err(), "{text}");
        }
    }
}
