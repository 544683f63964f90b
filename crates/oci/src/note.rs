//! The notes of a state root: `<root>/oci/HASH.TOKEN.json`, one for each container that was created through penfold.
//!
//! There is no lock. The token tells the note of a container from that of a later one with the same id, so the removal of one never removes the
//! other, and a process that is stopped holds up nobody.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use penfold_state::fnv_hash;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::mounts::MountNamespace;

/// What penfold notes about a container before it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerNote {
    /// The version of this format.
    pub schema: u32,
    /// The engine's state directory.
    #[serde(with = "penfold_process::path_text")]
    pub engine_root: PathBuf,
    /// The id of the container.
    pub id: String,
    /// The directory with its `config.json`.
    #[serde(with = "penfold_process::path_text")]
    pub bundle: PathBuf,
    /// The program of the delegate.
    #[serde(with = "penfold_process::path_text")]
    pub delegate: PathBuf,
    /// Whether the delegate asks systemd for cgroups.
    pub systemd: bool,
    /// The cgroup that the engine asked for; empty if the delegate chose.
    pub cgroups_path: String,
    /// Whether the container has a pid namespace that ends with its first process.
    pub private_pids: bool,
    /// Whether the container has a mount namespace of its own.
    #[serde(default)]
    pub private_mounts: bool,
    /// This namespace, if processes outside of the cgroups can be in it.
    #[serde(default)]
    pub mounts: Option<MountNamespace>,
    /// The engine, as far as it matters.
    #[serde(default)]
    pub engine: Engine,
    /// What its annotations ask for.
    #[serde(flatten)]
    pub asked: Annotations,
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
    #[serde(with = "penfold_process::path_text")]
    pub cgroups: Vec<PathBuf>,
}

/// An engine. Docker and Podman give a runtime less time than others, and forget a container whose runtime is late or refuses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Another one, such as containerd or CRI-O.
    #[default]
    #[serde(other)]
    Other,
}

/// What the annotations of a container ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// Whether `delete` only reports what is left.
    pub only_reports: bool,
    /// Whether what an `exec` starts ends with its command.
    pub contains_execs: bool,
}

/// The extension of the file that marks a container whose `delete` was refused.
const REFUSED: &str = "refused";

/// The notes of a state root.
#[derive(Debug, Clone)]
pub struct ContainerNotes {
    dir: PathBuf,
}

impl ContainerNotes {
    /// The notes below a state root.
    pub fn below(root: &Path) -> ContainerNotes {
        ContainerNotes { dir: root.join("oci") }
    }

    /// Reads the note of a container; `None` if there is none.
    ///
    /// # Errors
    /// When the note cannot be read.
    pub fn read(&self, engine_root: &Path, id: &str) -> io::Result<Option<ContainerNote>> {
        let mut newest = None;
        for file in self.files_of(engine_root, id)? {
            newest = newer(newest, file);
        }
        match newest.map(|(_, file)| std::fs::read(file)) {
            Some(Ok(text)) => Ok(Some(serde_json::from_slice(&text)?)),
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(None),
        }
    }

    /// Reads all notes, each with its file; the newest one of each container. A note that is damaged is left out: `delete` names it.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn all(&self) -> io::Result<Vec<(PathBuf, ContainerNote)>> {
        let mut newest: BTreeMap<OsString, DatedNote> = BTreeMap::new();
        for file in self.files()?.into_iter().filter(|file| is_note(file)) {
            let name = file.file_name().unwrap_or_default().as_bytes();
            let name = name.split(|byte| *byte == b'.').next().unwrap_or_default();
            let name = OsStr::from_bytes(name).to_owned();
            if let Some(dated) = newer(newest.remove(&name), file) {
                newest.insert(name, dated);
            }
        }
        let read = |(_, file): DatedNote| parsed(&file).map(|note| (file, note));
        Ok(newest.into_values().filter_map(read).collect())
    }

    /// Writes the note of a container, whole.
    ///
    /// # Errors
    /// When it cannot be written; an earlier note stays.
    pub fn write(&self, note: &ContainerNote) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        self.put(note, &self.file(note), |new, file| std::fs::rename(new, file))
    }

    /// Writes the note of a container anew, unless it has been removed meanwhile.
    ///
    /// # Errors
    /// When it cannot be written; the earlier note stays.
    pub(crate) fn rewrite(&self, note: &ContainerNote) -> io::Result<()> {
        let files = self.files_of(&note.engine_root, &note.id)?;
        let own = files.into_iter().find(|file| *file == self.file(note) || is_of(file, note));
        let Some(file) = own else { return Ok(()) };
        self.put(note, &file, |new, file| {
            match rustix::fs::renameat_with(CWD, new, CWD, file, RenameFlags::EXCHANGE) {
                Ok(()) | Err(Errno::NOENT) => Ok(std::fs::remove_file(new)?),
                // A file system that cannot exchange.
                Err(Errno::INVAL) => std::fs::rename(new, file),
                Err(errno) => Err(errno.into()),
            }
        })
    }

    fn put(
        &self,
        note: &ContainerNote,
        file: &Path,
        rename: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let new = self.file(note).with_extension(format!("new-{}", std::process::id()));
        let written = std::fs::write(&new, serde_json::to_vec(note)?).and_then(|()| rename(&new, file));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    /// Writes the note of a container that is about to be created, and removes those of earlier containers with its id.
    ///
    /// # Errors
    /// When it cannot be written; an earlier note stays.
    pub(crate) fn write_first(&self, note: &ContainerNote) -> io::Result<()> {
        let earlier = self.files_of(&note.engine_root, &note.id)?;
        self.write(note)?;
        for file in earlier {
            // One that stays is older: nobody reads it.
            let _ = std::fs::remove_file(file.with_extension(REFUSED));
            let _ = std::fs::remove_file(file);
        }
        Ok(())
    }

    /// Removes the note of a container, if it is there, and what a killed follower has left. That of a later container with the id stays.
    ///
    /// # Errors
    /// Those of readdir(3) and unlink(2).
    pub(crate) fn remove(&self, note: &ContainerNote) -> io::Result<()> {
        let name = ContainerNotes::name(&note.engine_root, &note.id);
        let (own, later): (Vec<PathBuf>, Vec<PathBuf>) = self
            .files_of(&note.engine_root, &note.id)?
            .into_iter()
            .partition(|file| *file == self.file(note) || is_of(file, note));
        let all = if later.is_empty() { self.files()? } else { Vec::new() };
        for file in all.into_iter().filter(|file| is_named(file, &name)).chain([self.mark(note)]).chain(own) {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => (),
            }
        }
        Ok(())
    }

    /// Marks a container whose engine wanted it deleted, in vain.
    ///
    /// # Errors
    /// Those of open(2).
    pub(crate) fn mark_refused(&self, note: &ContainerNote) -> io::Result<()> {
        File::create(self.mark(note)).map(drop)
    }

    /// Tells whether an engine wanted the container deleted, in vain.
    pub(crate) fn is_refused(&self, note: &ContainerNote) -> bool {
        self.mark(note).is_file()
    }

    /// Tells whether there is such a container; with `but`, another one than that with these root and id.
    pub(crate) fn have_refused(&self, but: Option<(&Path, &str)>) -> bool {
        let but = but.map(|(engine_root, id)| ContainerNotes::name(engine_root, id) + ".");
        let is_other = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().as_bytes();
            but.as_ref().is_none_or(|but| !name.starts_with(but.as_bytes()))
        };
        let files = self.files().unwrap_or_default();
        files.iter().any(|file| file.extension() == Some(OsStr::new(REFUSED)) && is_other(file))
    }

    fn mark(&self, note: &ContainerNote) -> PathBuf {
        self.file(note).with_extension(REFUSED)
    }

    /// Removes notes of a container that cannot be read.
    ///
    /// # Errors
    /// Those of readdir(3) and unlink(2).
    pub(crate) fn remove_damaged(&self, engine_root: &Path, id: &str) -> io::Result<()> {
        let mut files = self.files_of(engine_root, id)?;
        files.retain(|file| parsed(file).is_none());
        files.into_iter().try_for_each(std::fs::remove_file)
    }

    /// The files; none without the directory.
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => entries?.map(|entry| Ok(entry?.path())).collect(),
        }
    }

    /// The notes of a container; several if some of earlier ones are left.
    fn files_of(&self, engine_root: &Path, id: &str) -> io::Result<Vec<PathBuf>> {
        let name = ContainerNotes::name(engine_root, id) + ".";
        let mut files = self.files()?;
        files.retain(|file| {
            is_note(file) && file.file_name().unwrap_or_default().as_bytes().starts_with(name.as_bytes())
        });
        Ok(files)
    }

    /// The file for the pid of a command, where the engine wants none.
    pub(crate) fn pid_file(&self, engine_root: &Path, id: &str, command: &str) -> PathBuf {
        self.dir.join(format!("{}.{command}.pid", ContainerNotes::name(engine_root, id)))
    }

    fn file(&self, note: &ContainerNote) -> PathBuf {
        let name = ContainerNotes::name(&note.engine_root, &note.id);
        self.dir.join(format!("{name}.{}.json", note.token))
    }

    /// Engines reuse ids below different roots: the name is a hash of both.
    fn name(engine_root: &Path, id: &str) -> String {
        let mut key = engine_root.as_os_str().as_bytes().to_vec();
        key.push(0);
        key.extend_from_slice(id.as_bytes());
        format!("{:032x}", fnv_hash(&key))
    }
}

/// A note's file with the time of its last change.
type DatedNote = (SystemTime, PathBuf);

/// Returns the newer one of a dated file and another; without the other if that is gone.
fn newer(one: Option<DatedNote>, other: PathBuf) -> Option<DatedNote> {
    let changed = std::fs::metadata(&other).and_then(|meta| meta.modified());
    one.into_iter().chain(changed.ok().map(|changed| (changed, other))).max()
}

fn is_note(file: &Path) -> bool {
    file.extension() == Some(OsStr::new("json"))
}

/// Tells whether a file is the note of this container. Earlier versions had no token in the name of the file.
fn is_of(file: &Path, note: &ContainerNote) -> bool {
    parsed(file).is_some_and(|read| read.token == note.token)
}

/// Reads a note; `None` if it is damaged.
fn parsed(file: &Path) -> Option<ContainerNote> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Tells whether a file has the pid of a command in this container. runc writes `.FILE` first.
fn is_named(path: &Path, name: &str) -> bool {
    let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let rest = file.strip_prefix('.').unwrap_or(file).strip_prefix(name);
    rest.is_some_and(|rest| rest.starts_with('.')) && path.extension() == Some(OsStr::new("pid"))
}
