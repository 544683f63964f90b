//! The notes of a state root: `<root>/oci/HASH.json`, one for each container that was created through penfold.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use penfold_state::fnv;
use serde::{Deserialize, Serialize};

/// What penfold notes about a container before it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The version of this format.
    pub schema: u32,
    /// The engine's state directory.
    pub engine_root: PathBuf,
    /// The id of the container.
    pub id: String,
    /// The directory with its `config.json`.
    pub bundle: PathBuf,
    /// The program of the delegate.
    pub delegate: PathBuf,
    /// Whether the delegate asks systemd for cgroups.
    pub systemd: bool,
    /// The cgroup that the engine asked for; empty if the delegate chose.
    pub cgroups_path: String,
    /// Whether the container has a pid namespace that ends with its first process.
    pub private_pids: bool,
    /// What its annotations ask for.
    #[serde(flatten)]
    pub asked: Asked,
    /// The boot in which the container was created.
    pub boot_id: String,
    /// The mount namespace from which the engine's state directory was seen; 0 if it could not be told.
    #[serde(default)]
    pub mount_namespace: u64,
    /// What tells this container from later ones with its id.
    #[serde(default)]
    pub token: String,
    /// The cgroups of the container: those that the delegate makes below its own; and what `delete` has seen, since the delegate removes its state
    /// first.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
}

/// What the annotations of a container ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Whether `delete` only reports what is left.
    pub only_reports: bool,
    /// Whether what an `exec` starts ends with its command.
    pub contains_execs: bool,
}

/// The notes of a state root.
#[derive(Debug, Clone)]
pub struct Notes {
    dir: PathBuf,
}

impl Notes {
    /// The notes below a state root.
    pub fn below(root: &Path) -> Notes {
        Notes { dir: root.join("oci") }
    }

    /// Reads the note of a container; `None` if there is none.
    ///
    /// # Errors
    /// When the note cannot be read.
    pub fn read(&self, engine_root: &Path, id: &str) -> io::Result<Option<Note>> {
        match std::fs::read(self.file(engine_root, id)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads all notes, each with its file. A note that is damaged is left out: `delete` names it.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn all(&self) -> io::Result<Vec<(PathBuf, Note)>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let is_note = path.extension().is_some_and(|extension| extension == "json");
            let note = if is_note { std::fs::read(&path).ok() } else { None };
            let note = note.and_then(|text| serde_json::from_slice::<Note>(&text).ok());
            found.extend(note.map(|note| (path, note)));
        }
        Ok(found)
    }

    /// Writes the note of a container, whole.
    ///
    /// # Errors
    /// When it cannot be written; an earlier note stays.
    pub fn write(&self, note: &Note) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let _lock = self.lock()?;
        let file = self.file(&note.engine_root, &note.id);
        let new = file.with_extension(format!("new-{}", std::process::id()));
        std::fs::write(&new, serde_json::to_vec(note)?)?;
        std::fs::rename(&new, &file)
    }

    /// Removes the note of a container, if there is one, and before it what a killed follower has left. With a `token`, the note of a
    /// later container with the id stays.
    ///
    /// # Errors
    /// Those of open(2), flock(2) and unlink(2), and when the note cannot be read.
    pub fn remove(&self, engine_root: &Path, id: &str, token: Option<&str>) -> io::Result<()> {
        let Some(_lock) = self.lock()? else { return Ok(()) };
        if let (Some(token), Some(note)) = (token, self.read(engine_root, id)?)
            && note.token != token
        {
            return Ok(());
        }
        let (note, name) = (self.file(engine_root, id), Notes::name(engine_root, id));
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let others = entries.map(|entry| entry.path()).filter(|path| *path != note && is_named(path, &name));
        for path in others.chain([note.clone()]) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => (),
            }
        }
        Ok(())
    }

    /// Keeps other processes from writing and removing notes meanwhile; `None` without the directory.
    fn lock(&self) -> io::Result<Option<File>> {
        match File::open(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            dir => {
                let dir = dir?;
                penfold_state::lock::hold_new(&dir)?;
                Ok(Some(dir))
            }
        }
    }

    /// The file for the pid of a command, where the engine wants none.
    pub(crate) fn pid_file(&self, engine_root: &Path, id: &str, command: &str) -> PathBuf {
        self.dir.join(format!("{}.{command}.pid", Notes::name(engine_root, id)))
    }

    fn file(&self, engine_root: &Path, id: &str) -> PathBuf {
        self.dir.join(format!("{}.json", Notes::name(engine_root, id)))
    }

    /// Engines reuse ids below different roots: the name is a hash of both.
    fn name(engine_root: &Path, id: &str) -> String {
        let mut key = engine_root.as_os_str().as_bytes().to_vec();
        key.push(0);
        key.extend_from_slice(id.as_bytes());
        format!("{:032x}", fnv(&key))
    }
}

/// Tells whether a file has the pid of a command in this container. runc writes `.FILE` first.
fn is_named(path: &Path, name: &str) -> bool {
    let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let rest = file.strip_prefix('.').unwrap_or(file).strip_prefix(name);
    rest.is_some_and(|rest| rest.starts_with('.')) && path.extension() == Some(OsStr::new("pid"))
}
