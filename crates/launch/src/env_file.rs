//! Environment variables from files, as docker reads them.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use penfold_request::value::{self, EnvSetting};

use crate::error::LaunchError;

/// The largest file.
const LARGEST: u64 = 1 << 20;

/// Reads the settings of these files, in their order.
///
/// # Errors
/// When a file cannot be read, or has a line that sets no variable.
pub fn read_env_files(files: &[PathBuf]) -> Result<Vec<EnvSetting>, LaunchError> {
    let mut settings = Vec::new();
    for file in files {
        let cannot = || {
            let sentence = format!("cannot read the environment variables of `{}`", file.display());
            LaunchError::new(sentence)
        };
        let text = read(file).map_err(|error| cannot().because(error))?;
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let because = |error: value::Invalid| cannot().because(format!("line {number}: {error}"));
            settings.extend(setting(line).transpose().map_err(because)?);
        }
    }
    Ok(settings)
}

/// Reads a file, or standard input for `-`.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let file: Box<dyn std::io::Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path)?)
    };
    let mut text = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > LARGEST {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

/// Reads a line. Spaces before the name do not count; the value is everything after the first `=`.
fn setting(line: &[u8]) -> Option<Result<EnvSetting, value::Invalid>> {
    let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
    if line.is_empty() || line.starts_with(b"#") {
        return None;
    }
    let name = line.split(|&byte| byte == b'=').next().unwrap_or_default();
    if line.contains(&0) || name.iter().any(u8::is_ascii_whitespace) {
        let given = String::from_utf8_lossy(line);
        return Some(Err(value::Invalid::new(given, "names no variable", "`KEY=VALUE`, or `KEY`")));
    }
    Some(value::env_setting(OsStr::from_bytes(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[u8]) -> Option<(String, Option<String>)> {
        let EnvSetting { key, value } = setting(line)?.ok()?;
        Some((key.into_string().ok()?, value.map(|value| value.into_string().unwrap_or_default())))
    }

    /// spec: 5.19
    #[test]
    fn lines_are_settings_and_comments() {
        let pair = |key: &str, value: &str| Some((key.to_owned(), Some(value.to_owned())));
        assert_eq!(read(b"A=1"), pair("A", "1"));
        assert_eq!(read(b"  A= x = y # z\r"), pair("A", " x = y # z"));
        assert_eq!(read(b"A=\"q\""), pair("A", "\"q\""));
        assert_eq!(read(b"A"), Some(("A".to_owned(), None)));
        for nothing in [&b""[..], b"  ", b"# A=1", b"\r"] {
            assert!(setting(nothing).is_none());
        }
        for wrong in [&b"=x"[..], b"A B=1", b"export A=1", b"A=\0"] {
            assert!(setting(wrong).is_some_and(|setting| setting.is_err()), "{wrong:?}");
        }
    }
}
