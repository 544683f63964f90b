//! `/proc/<pid>/mountinfo`, `proc_pid_mountinfo(5)`.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A line that does not have the format of `proc_pid_mountinfo(5)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot find {field} in line {line} of `mountinfo`")]
pub struct ParseError {
    /// The line number, from 1.
    pub line: usize,
    /// The field that is missing or malformed.
    pub field: &'static str,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The id of the mount, which may be reused after an unmount.
    pub id: u32,
    /// The id of the parent mount.
    pub parent: u32,
    /// The device number of the file system, as `major:minor`.
    pub device: String,
    /// The directory of the file system that is the root of this mount.
    pub root: PathBuf,
    /// The mount point, relative to the reader's root.
    pub mount_point: PathBuf,
    /// The options of this mount, separated by commas.
    pub options: String,
    /// The type of the file system, such as `cgroup2`.
    pub fs_type: String,
    /// The source of the mount, such as a device.
    pub source: PathBuf,
    /// The options of the file system, separated by commas.
    pub super_options: String,
}

impl MountEntry {
    /// Tells whether `option` is among the options of the mount or of the file system.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.split(',').chain(self.super_options.split(',')).any(|found| found == option)
    }
}

/// Parses the whole text. Optional fields are skipped, known or not.
pub fn parse_mountinfo(text: &[u8]) -> Result<Vec<MountEntry>, ParseError> {
    lines(text).map(|line| line.map(Line::to_mount)).collect()
}

/// Parses only the lines of one type of file system, and skips damaged others.
pub(crate) fn of_type<'a>(
    text: &'a [u8],
    fs_type: &'a [u8],
) -> impl Iterator<Item = Result<MountEntry, ParseError>> + 'a {
    text.split(|&byte| byte == b'\n').enumerate().filter_map(move |(index, line)| {
        // Search for the type as a word before parsing: this is on the path of every run, and most mounts are of other
        // types.
        line.split(|&byte| byte == b' ')
            .any(|word| word == fs_type)
            .then(|| Line::parse(index + 1, line))
            .filter(|line| line.as_ref().map_or(true, |line| line.fs_type == fs_type))
            .map(|line| line.map(Line::to_mount))
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = Result<Line<'_>, ParseError>> {
    text.split(|&byte| byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| Line::parse(index + 1, line))
}

#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    id: u32,
    parent: u32,
    device: &'a [u8],
    root: &'a [u8],
    mount_point: &'a [u8],
    options: &'a [u8],
    fs_type: &'a [u8],
    source: &'a [u8],
    super_options: &'a [u8],
}

impl<'a> Line<'a> {
    fn parse(line: usize, text: &'a [u8]) -> Result<Self, ParseError> {
        let missing = |field| ParseError { line, field };
        let mut fields = text.split(|&byte| byte == b' ');
        let mut next = |field| fields.next().ok_or(missing(field));
        let id = number(next("the mount id")?).ok_or(missing("the mount id"))?;
        let parent = number(next("the parent id")?).ok_or(missing("the parent id"))?;
        let device = next("the device")?;
        let root = next("the root")?;
        let mount_point = next("the mount point")?;
        let options = next("the options")?;
        while next("the separator")? != b"-" {}
        let fs_type = next("the file system type")?;
        // An empty source leaves two spaces in a row, which splits into an empty field.
        let source = next("the source")?;
        let super_options = next("the super options")?;
        Ok(Self { id, parent, device, root, mount_point, options, fs_type, source, super_options })
    }

    fn to_mount(self) -> MountEntry {
        MountEntry {
            id: self.id,
            parent: self.parent,
            device: text(self.device),
            root: path(self.root),
            mount_point: path(self.mount_point),
            options: text(self.options),
            fs_type: text(self.fs_type),
            source: path(self.source),
            super_options: text(self.super_options),
        }
    }
}

fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    match unescape(field) {
        Cow::Borrowed(bytes) => PathBuf::from(OsStr::from_bytes(bytes)),
        Cow::Owned(bytes) => PathBuf::from(std::ffi::OsString::from_vec(bytes)),
    }
}

/// Decodes the kernel's `\ooo` for space, tab, newline, backslash and `#`.
fn unescape(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(byte) = octal(rest) {
            plain.push(byte);
            rest = &rest[4..];
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    Cow::Owned(plain)
}

fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] = text else {
        return None;
    };
    Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn optional_fields_are_skipped() {
        for optional in ["", "shared:7 ", "shared:7 master:1 propagate_from:2 unbindable ", "later:9 thing "]
        {
            let line =
                format!("36 35 98:0 /mnt1 /mnt2 rw,noatime {optional}- ext3 /dev/root rw,errors=continue\n");
            let mounts = parse_mountinfo(line.as_bytes()).expect("the example of the man page");
            assert_eq!(mounts.len(), 1);
            assert_eq!(mounts[0].root, PathBuf::from("/mnt1"));
            assert_eq!(mounts[0].mount_point, PathBuf::from("/mnt2"));
            assert_eq!(mounts[0].fs_type, "ext3");
            assert!(mounts[0].has_option("noatime") && mounts[0].has_option("errors=continue"));
        }
    }

    #[test]
    fn octal_escapes_are_undone() {
        let line = br"40 23 0:5 / /a\040b\011c\012d\134e\043f rw - cgroup2 none rw";
        assert_eq!(parse_mountinfo(line).expect("escapes")[0].mount_point, PathBuf::from("/a b\tc\nd\\e#f"));
        assert_eq!(&*unescape(br"\04x\9\"), br"\04x\9\");
    }

    #[test]
    fn an_empty_source_is_legal() {
        let mounts = parse_mountinfo(b"40 23 0:5 / /a rw - tmpfs  rw").expect("an empty source");
        assert_eq!(mounts[0].source, PathBuf::new());
        assert_eq!(mounts[0].super_options, "rw");
    }

    #[test]
    fn a_damaged_line_is_named() {
        let error = parse_mountinfo(b"36 35 98:0 / /a rw - ext3 x rw\n37 35 98:0 /\n").expect_err("cut off");
        assert_eq!(error, ParseError { line: 2, field: "the mount point" });
    }

    fn escape(path: &str) -> String {
        path.chars()
            .map(|c| match c {
                ' ' | '\t' | '\n' | '\\' | '#' => format!("\\{:03o}", u32::from(c)),
                c => c.to_string(),
            })
            .collect()
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = parse_mountinfo(&text);
            let _ = of_type(&text, b"cgroup2").count();
        }

        #[test]
        fn paths_round_trip(id in any::<u32>(), root in "/[ -~\t\n]{0,20}", point in "/[ -~é\t\n]{0,20}") {
            let line = format!(
                "{id} 1 0:5 {} {} rw,nosuid shared:1 - cgroup2 cgroup rw,nsdelegate\n",
                escape(&root), escape(&point),
            );
            let mounts = parse_mountinfo(line.as_bytes()).expect("a line as the kernel writes it");
            prop_assert_eq!(mounts[0].id, id);
            prop_assert_eq!(&mounts[0].root, &PathBuf::from(root));
            prop_assert_eq!(&mounts[0].mount_point, &PathBuf::from(point));
            prop_assert_eq!(of_type(line.as_bytes(), b"cgroup2").count(), 1);
            prop_assert_eq!(of_type(line.as_bytes(), b"cgroup").count(), 0);
        }
    }
}
