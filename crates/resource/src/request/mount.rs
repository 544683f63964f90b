//! A mount, as a user writes it.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::mistake::Mistake;

/// A mount that is made for the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum MountRequest {
    /// A file or directory that is seen at a second place.
    Bind {
        /// The file or directory.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        #[serde(with = "penfold_process::path_text")]
        source: PathBuf,
        /// The mount point.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        #[serde(with = "penfold_process::path_text")]
        target: PathBuf,
        /// Whether nothing may be written.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        read_only: bool,
    },
    /// Directories on top of each other.
    Overlay {
        /// The directories that are only read, the topmost first.
        #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
        #[serde(with = "penfold_process::path_text")]
        lower: Vec<PathBuf>,
        /// The directory that takes the changes; by default one that goes with the sandbox.
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(with = "penfold_process::path_text")]
        upper: Option<PathBuf>,
        /// An empty directory in the same file system as `upper`.
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(with = "penfold_process::path_text")]
        work: Option<PathBuf>,
        /// The mount point.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        #[serde(with = "penfold_process::path_text")]
        target: PathBuf,
        /// Whether nothing may be written.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        read_only: bool,
    },
    /// Files in memory.
    Tmpfs {
        /// The mount point.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        #[serde(with = "penfold_process::path_text")]
        target: PathBuf,
        /// The limit; by default half of the memory.
        #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<Size>,
        /// Whether nothing may be written.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        read_only: bool,
    },
}

/// A number of bytes: `"64M"`, `"65536K"`, `"1G"`, `"67108864"`, or the number itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Size(u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

impl Size {
    /// Returns the number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl From<Size> for String {
    fn from(size: Size) -> String {
        size.0.to_string()
    }
}

impl TryFrom<Written> for Size {
    type Error = Mistake;

    fn try_from(written: Written) -> Result<Size, Mistake> {
        match written {
            Written::Number(0) => Err(Mistake::Size("0".to_owned())),
            Written::Number(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Size {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Size, Mistake> {
        let (number, shift) = match text.as_bytes().last() {
            Some(b'K' | b'k') => (text.get(..text.len() - 1), 10),
            Some(b'M' | b'm') => (text.get(..text.len() - 1), 20),
            Some(b'G' | b'g') => (text.get(..text.len() - 1), 30),
            _ => (Some(text), 0),
        };
        let digits = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        let bytes = digits.and_then(|digits| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
        bytes.filter(|bytes| *bytes > 0).map(Size).ok_or_else(|| Mistake::Size(text.to_owned()))
    }
}

/// The keys of one mount, as they are read from a text like `type=overlay,lower=/a:/b,target=/m,read_only`.
struct Keys<'a> {
    mount: &'a str,
    found: Vec<(&'a str, &'a str)>,
}

impl<'a> Keys<'a> {
    fn read(mount: &'a str) -> Keys<'a> {
        let found = mount.split(',').map(|word| word.split_once('=').unwrap_or((word, "")));
        Keys { mount, found: found.map(|(key, value)| (plain(key), value)).collect() }
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let index = self.found.iter().position(|(found, _)| *found == key)?;
        Some(self.found.remove(index).1)
    }

    fn take_path(&mut self, key: &str) -> Option<PathBuf> {
        self.take(key).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn must(&mut self, key: &'static str) -> Result<PathBuf, Mistake> {
        self.take_path(key).ok_or_else(|| Mistake::Missing { mount: self.mount.to_owned(), key })
    }

    fn take_flag(&mut self, key: &str) -> Result<bool, Mistake> {
        match self.take(key) {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(value) => Err(self.unknown(&format!("{key}={value}"))),
        }
    }

    fn unknown(&self, key: &str) -> Mistake {
        Mistake::Key { mount: self.mount.to_owned(), key: key.to_owned() }
    }
}

/// The names that other tools use for the same keys.
fn plain(key: &str) -> &str {
    match key {
        "src" => "source",
        "dst" | "destination" => "target",
        "ro" | "readonly" | "read-only" => "read_only",
        other => other,
    }
}

impl FromStr for MountRequest {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<MountRequest, Mistake> {
        let mut keys = Keys::read(text);
        let kind = keys.take("type").unwrap_or("bind");
        if !["bind", "overlay", "tmpfs"].contains(&kind) {
            return Err(Mistake::MountType(kind.to_owned()));
        }
        let target = keys.must("target")?;
        let read_only = keys.take_flag("read_only")?;
        let mount = match kind {
            "overlay" => {
                let lower = keys.must("lower")?;
                let lower = lower.to_string_lossy().split(':').map(PathBuf::from).collect();
                let (upper, work) = (keys.take_path("upper"), keys.take_path("work"));
                MountRequest::Overlay { lower, upper, work, target, read_only }
            }
            "tmpfs" => {
                let size = keys.take("size").map(Size::from_str).transpose()?;
                MountRequest::Tmpfs { target, size, read_only }
            }
            _ => MountRequest::Bind { source: keys.must("source")?, target, read_only },
        };
        match keys.found.first() {
            Some((key, _)) => Err(keys.unknown(key)),
            None => Ok(mount),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_other_tools_write_them() {
        let overlay: MountRequest = "type=overlay,lower=/a:/b,target=/m".parse().unwrap();
        let expected = MountRequest::Overlay {
            lower: vec!["/a".into(), "/b".into()],
            upper: None,
            work: None,
            target: "/m".into(),
            read_only: false,
        };
        assert_eq!(overlay, expected);
        let bind: MountRequest = "src=/a,dst=/m,ro".parse().unwrap();
        assert_eq!(bind, MountRequest::Bind { source: "/a".into(), target: "/m".into(), read_only: true });
        let tmpfs: MountRequest = "type=tmpfs,target=/m,size=64M".parse().unwrap();
        assert_eq!(
            tmpfs,
            MountRequest::Tmpfs { target: "/m".into(), size: Some(Size(64 << 20)), read_only: false }
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (text, message) in [
            ("", "the mount `` has no `target`"),
            ("type=ext4,target=/m", "`ext4` is no type of a mount; write `bind`, `overlay` or `tmpfs`"),
            ("target=/m", "the mount `target=/m` has no `source`"),
            ("type=tmpfs,target=/m,size=", "`` is no size; write a number of bytes, or one with K, M or G"),
            (
                "type=tmpfs,target=/m,lower=/a",
                "the mount `type=tmpfs,target=/m,lower=/a` has an unknown or repeated key `lower`",
            ),
            (
                "type=tmpfs,target=/m,target=/n",
                "the mount `type=tmpfs,target=/m,target=/n` has an unknown or repeated key `target`",
            ),
            (
                "type=tmpfs,target=/m,ro=maybe",
                "the mount `type=tmpfs,target=/m,ro=maybe` has an unknown or repeated key `read_only=maybe`",
            ),
        ] {
            assert_eq!(text.parse::<MountRequest>().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn sizes_have_units_and_a_limit() {
        assert_eq!("1".parse::<Size>().unwrap().bytes(), 1);
        assert_eq!("2K".parse::<Size>().unwrap().bytes(), 2048);
        for text in ["", "K", "0", "-1", "+1", "1T", "99999999999G"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn unknown_keys_are_refused_in_json_too() {
        let good = r#"{"type":"tmpfs","target":"/m","size":"1M"}"#;
        assert!(serde_json::from_str::<MountRequest>(good).is_ok());
        let bad = r#"{"type":"tmpfs","target":"/m","source":"/a"}"#;
        assert!(serde_json::from_str::<MountRequest>(bad).is_err());
    }
}
