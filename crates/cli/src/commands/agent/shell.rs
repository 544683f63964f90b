//! `penfold-sh` in the settings of Claude Code.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use jsonc_parser::ast::{Object, Value};
use jsonc_parser::common::Ranged;
use rustix::fs::{Access, AtFlags, CWD};

use super::edits::{Edits, quoted, text_of};
use crate::commands::sh;
use crate::failure::{Failure, FailureKind};
use crate::variables;

/// The variable with the program that runs shell commands.
const PREFIX: &str = "CLAUDE_CODE_SHELL_PREFIX";

/// The link to penfold with the name `penfold-sh`.
pub(super) struct Link {
    /// The path of the link.
    pub(super) path: PathBuf,
    /// What it is to lead to, if it is still to be made.
    missing: Option<PathBuf>,
}

impl Link {
    /// Finds the link, or the place for it: beside the program, or where this user cannot make it, in `~/.local/bin`.
    pub(super) fn find(program: &Path) -> Result<Link, Failure> {
        let beside = Link::at(program.with_file_name(sh::PROGRAM), program)?;
        match variables::user_home().filter(|home| home.is_absolute()) {
            Some(home) if beside.missing.is_some() && !program.parent().is_some_and(may_write) => {
                Link::at(home.join(".local/bin").join(sh::PROGRAM), program)
            }
            _ => Ok(beside),
        }
    }

    /// Looks at a path.
    fn at(path: PathBuf, program: &Path) -> Result<Link, Failure> {
        match path.canonicalize() {
            Ok(target) if target == program => Ok(Link { path, missing: None }),
            Ok(_) => {
                let sentence = format!("`{}` exists, and is no link to this penfold", path.display());
                Err(Failure::new(FailureKind::Other, sentence))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let is_beside = path.parent() == program.parent();
                let name = program.file_name().map(PathBuf::from).filter(|_| is_beside);
                Ok(Link { path, missing: Some(name.unwrap_or_else(|| program.to_owned())) })
            }
            Err(error) => Err(cannot_look(&path, error)),
        }
    }

    /// Makes the link, if it is missing.
    pub(super) fn make(&self) -> Result<(), Failure> {
        let Some(target) = &self.missing else { return Ok(()) };
        let directory = self.path.parent().map_or(Ok(()), std::fs::create_dir_all);
        directory.and_then(|()| symlink(target, &self.path)).map_err(|error| {
            let hint =
                format!("make it as a user who may: `ln -s {} {}`", target.display(), self.path.display());
            let sentence = format!("cannot make the link `{}`", self.path.display());
            Failure::new(FailureKind::from(&error), sentence).because(error).hint(hint)
        })
    }
}

/// Whether this user can make files in a directory.
fn may_write(directory: &Path) -> bool {
    rustix::fs::accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

fn cannot_look(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(FailureKind::from(&error), format!("cannot follow `{}`", path.display())).because(error)
}

/// The settings as far as they are about the shell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Each command runs with `penfold-sh`.
    Installed,
    /// Each command runs with another program.
    Other(String),
    /// Commands run with the shell only.
    Absent,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            State::Installed => f.write_str("installed"),
            State::Other(program) => write!(f, "not installed: {PREFIX} is {program}"),
            State::Absent => f.write_str("not installed"),
        }
    }
}

/// Tells what the settings say about the shell.
pub(super) fn state(root: Option<&Value<'_>>) -> State {
    let variables = root.and_then(Value::as_object).and_then(|root| root.get_object("env"));
    match variables.and_then(|variables| variables.get_string(PREFIX)).map(|literal| literal.value.as_ref()) {
        Some(program) if is_ours(program) => State::Installed,
        Some(program) => State::Other(program.to_owned()),
        None => State::Absent,
    }
}

/// Sets the variable.
///
/// # Errors
/// A reason, if the settings have another form, or another program is set.
pub(super) fn install(root: Option<&Value<'_>>, link: &Path, edits: &mut Edits<'_>) -> Result<(), String> {
    let link = quoted(link.to_str().ok_or("the path of penfold is not UTF-8")?);
    let whole = format!("\n  \"env\": {{\n    {}: {link}\n  }}\n", quoted(PREFIX));
    let Some(root) = root else {
        edits.replace(0..0, format!("{{{whole}}}\n"));
        return Ok(());
    };
    let root = root.as_object().ok_or("it holds no object")?;
    let Some(variables) = root.get("env") else {
        match root.properties.last() {
            None => edits.add_first(root, &whole),
            Some(last) => {
                let gap = edits.gap(last.start());
                let indentation = gap.rsplit_once('\n').map_or("", |(_, indentation)| indentation);
                let (open, close) = if gap.contains('\n') {
                    (format!("{gap}{indentation}"), gap)
                } else {
                    (String::new(), "")
                };
                let value = format!("{{{open}{}: {link}{close}}}", quoted(PREFIX));
                edits.add_after(last, "env", &value);
            }
        }
        return Ok(());
    };
    let variables = variables.value.as_object().ok_or("`env` is no object")?;
    match (variables.get(PREFIX), variables.properties.last()) {
        (Some(entry), _) => {
            let (start, end) = (entry.value.start(), entry.value.end());
            match text_of(&entry.value) {
                Some(other) if quoted(other) == link => {}
                Some(other) if is_ours(other) => edits.replace(start..end, link),
                _ => return Err(format!("`{PREFIX}` is {} already", edits.at(start..end))),
            }
        }
        (None, Some(last)) => edits.add_after(last, PREFIX, &link),
        (None, None) => edits.add_first(variables, &format!(" {}: {link} ", quoted(PREFIX))),
    }
    Ok(())
}

/// Removes the variable if it names a `penfold-sh`, and the object around it if `install` has made that.
pub(super) fn uninstall(root: Option<&Value<'_>>, edits: &mut Edits<'_>) {
    let Some(root) = root.and_then(Value::as_object).filter(|_| state(root) == State::Installed) else {
        return;
    };
    let index =
        |object: &Object<'_>, name| object.properties.iter().position(|one| one.name.as_str() == name);
    let (Some(variables), Some(place)) = (root.get_object("env"), index(root, "env")) else { return };
    let Some(own) = index(variables, PREFIX) else { return };
    if variables.properties.len() == 1 && !was_there(variables, edits) {
        edits.remove(root, place);
    } else {
        edits.remove(variables, own);
    }
}

/// Whether an object with one property was there before `install`: it holds a comment, or the space of `install`.
fn was_there(object: &Object<'_>, edits: &Edits<'_>) -> bool {
    let Some(only) = object.properties.first() else { return true };
    let before = edits.at(object.start() + 1..only.start());
    let after = edits.at(only.end()..object.end());
    before == " " || !before.trim().is_empty() || !matches!(after.trim(), "}" | ",}")
}

fn is_ours(program: &str) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(sh::PROGRAM))
}
