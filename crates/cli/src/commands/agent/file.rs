//! A file of settings: read, shown as a diff, and replaced as a whole.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use diffy::DiffOptions;
use jsonc_parser::ast::Value;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use crate::failure::{Failure, FailureKind};
use crate::output;

/// Appended to the name of the file, for the file as it was.
const BACKUP: &str = ".penfold-backup";
/// Some editors put it in front of UTF-8. It is no JSON.
const BYTE_ORDER_MARK: &str = "\u{feff}";
/// JSON with comments and trailing commas, and nothing else that is not JSON.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// A file of settings, as it was read.
pub(super) struct SettingsFile {
    /// The path that was given.
    given: PathBuf,
    /// The file itself: links are followed, so that they stay.
    path: PathBuf,
    /// The text without the mark; `None` if there is no file.
    text: Option<String>,
    /// The byte order mark, or nothing.
    mark: &'static str,
}

impl SettingsFile {
    /// Reads a file that must exist.
    pub(super) fn open(path: &Path) -> Result<SettingsFile, Failure> {
        let file = SettingsFile::open_or_new(path)?;
        if file.is_new() {
            return Err(cannot("read", path, io::ErrorKind::NotFound.into()));
        }
        Ok(file)
    }

    /// Reads a file, or stands for one that is still to be made.
    pub(super) fn open_or_new(given: &Path) -> Result<SettingsFile, Failure> {
        let of = |path, text, mark| SettingsFile { given: given.to_owned(), path, text, mark };
        let path = match given.canonicalize() {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !given.is_symlink() => {
                return Ok(of(given.to_owned(), None, ""));
            }
            Err(error) => return Err(cannot("read", given, error)),
        };
        let bytes = read(&path).map_err(|error| cannot("read", given, error))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| cannot("read", given, io::Error::other("it is not UTF-8")))?;
        Ok(match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) => of(path, Some(rest.to_owned()), BYTE_ORDER_MARK),
            None => of(path, Some(text), ""),
        })
    }

    /// Whether there is no file yet.
    pub(super) fn is_new(&self) -> bool {
        self.text.is_none()
    }

    /// The path that was given, for people.
    pub(super) fn name(&self) -> String {
        self.given.display().to_string()
    }

    /// The text; empty if there is no file.
    pub(super) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Parses the text; `None` if it is empty.
    pub(super) fn parse(&self) -> Result<Option<Value<'_>>, Failure> {
        let parsed = parse_to_ast(self.text(), &CollectOptions::default(), &OPTIONS);
        let value = parsed.map(|parsed| parsed.value).map_err(|error| {
            let reason = error.to_string();
            let mut letters = reason.chars();
            let first = letters.next().map(|letter| letter.to_lowercase().to_string()).unwrap_or_default();
            self.refuse(&format!("it is no JSON: {first}{}", letters.as_str()))
        })?;
        match value.as_ref().and_then(repeated_key) {
            Some(key) => Err(self.refuse(&format!("an object has the key `{key}` twice"))),
            None => Ok(value),
        }
    }

    /// Makes a failure of a reason why the file is left as it is.
    pub(super) fn refuse(&self, reason: &str) -> Failure {
        Failure::new(FailureKind::Other, format!("cannot change `{}`", self.name()))
            .because(reason.to_owned())
    }

    /// Prints the changes, and makes them unless this is a dry run.
    pub(super) fn change(&self, after: &str, dry_run: bool) -> Result<(), Failure> {
        let before = self.text();
        if before == after {
            return Ok(());
        }
        let name = self.name();
        let old = match (&self.text, dry_run) {
            (None, _) => "/dev/null".to_owned(),
            (Some(_), true) => name.clone(),
            (Some(_), false) => backup(&self.path).display().to_string(),
        };
        let mut diff = DiffOptions::new();
        diff.set_original_filename(old).set_modified_filename(name.clone());
        let shown = diff.create_patch(before, after).to_string();
        output::data(shown.as_bytes())?;
        if dry_run { Ok(()) } else { self.replace(after) }
    }

    /// Replaces the file by one with this text, with the same owner and mode.
    fn replace(&self, text: &str) -> Result<(), Failure> {
        let failed = |error| cannot("write", &self.given, error);
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        if self.is_new() {
            fs::create_dir_all(directory).map_err(failed)?;
        } else {
            let backup = backup(&self.path);
            self.write(&backup, self.text()).map_err(|error| cannot("write", &backup, error))?;
        }
        if fs::metadata(&self.path).is_ok_and(|meta| meta.nlink() > 1) {
            return self.write_through(text).map_err(failed);
        }
        let temporary = with_ending(&self.path, &format!(".penfold-{}", std::process::id()));
        let written = self.write(&temporary, text).and_then(|()| self.take_place(&temporary, text));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(failed)
    }

    /// Writes a new file with the owner and the mode of the settings.
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(self.mark.as_bytes())?;
        file.write_all(text.as_bytes())?;
        if !self.is_new() {
            let like = fs::metadata(&self.path)?;
            let own = file.metadata()?;
            if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
                fchown(&file, Some(like.uid()), Some(like.gid()))?;
            }
            file.set_permissions(Permissions::from_mode(like.mode() & 0o7777))?;
        }
        file.sync_all()
    }

    /// Renames the new file over the old one, unless another program has changed that one meanwhile.
    fn take_place(&self, temporary: &Path, text: &str) -> io::Result<()> {
        self.check_unchanged()?;
        match fs::rename(temporary, &self.path) {
            // A container may have this very file from its host, as a mount point.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                fs::remove_file(temporary)?;
                self.write_through(text)
            }
            renamed => renamed,
        }
    }

    /// Writes into the file itself, which keeps its other names. The backup has the old text, should this be interrupted.
    fn write_through(&self, text: &str) -> io::Result<()> {
        self.check_unchanged()?;
        let mut file = File::options().write(true).truncate(true).open(&self.path)?;
        file.write_all(self.mark.as_bytes())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    fn check_unchanged(&self) -> io::Result<()> {
        let now = match read(&self.path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if now != self.text.as_ref().map(|text| [self.mark, text].concat().into_bytes()) {
            return Err(io::Error::other("another program has changed it meanwhile"));
        }
        Ok(())
    }
}

/// Reads a regular file. A pipe would have to wait for a writer.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns a key that an object has twice. Programs differ in which of the two they read.
fn repeated_key<'v>(value: &'v Value<'_>) -> Option<&'v str> {
    match value {
        Value::Object(object) => {
            let mut keys = HashSet::new();
            object.properties.iter().find_map(|property| {
                let key = property.name.as_str();
                if keys.insert(key) { repeated_key(&property.value) } else { Some(key) }
            })
        }
        Value::Array(list) => list.elements.iter().find_map(repeated_key),
        _ => None,
    }
}

fn backup(path: &Path) -> PathBuf {
    with_ending(path, BACKUP)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn cannot(act: &str, path: &Path, error: io::Error) -> Failure {
    Failure::new(FailureKind::from(&error), format!("cannot {act} `{}`", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_another_program_has_changed_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.json");
        for first in [Some("{}"), None] {
            let _ = fs::remove_file(&path);
            if let Some(text) = first {
                fs::write(&path, text).unwrap();
            }
            let file = SettingsFile::open_or_new(&path).unwrap();
            fs::write(&path, "{\"theirs\": 1}").unwrap();
            let failure = file.change("{\"ours\": 1}", false).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::Other);
            assert_eq!(fs::read_to_string(&path).unwrap(), "{\"theirs\": 1}");
            let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            assert!(
                names
                    .filter_map(|name| name.into_string().ok())
                    .all(|name| { name == "settings.json" || name == "settings.json.penfold-backup" })
            );
        }
    }
}
